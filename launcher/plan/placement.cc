#include "launcher/plan/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace sortie::launcher {
namespace {

struct BindingPolicy {
  std::string_view name;  // value of runner.cpu_binding
  wire::CpuBinding wire;
  cpu::Policy policy;
};
constexpr BindingPolicy kPolicies[] = {
    {"none", wire::CpuBinding::none, cpu::Policy::none},
    {"auto", wire::CpuBinding::automatic, cpu::Policy::automatic},
    {"core", wire::CpuBinding::core, cpu::Policy::core},
    {"numa", wire::CpuBinding::numa, cpu::Policy::numa},
};
const BindingPolicy& policy_named(std::string_view name) {
  const auto* found = std::ranges::find(kPolicies, name, &BindingPolicy::name);
  return found == std::end(kPolicies) ? kPolicies[0] : *found;
}

}  // namespace

wire::CpuBinding binding_named(std::string_view name) {
  return policy_named(name).wire;
}

void show_binding(LaunchPlan& plan, HostPlan& host, const cpu::Topology& topology) {
  std::vector<std::uint32_t> slots;
  for (const RankPlan& rank : host.ranks) slots.push_back(static_cast<std::uint32_t>(rank.slot));
  const cpu::Binding binding =
      cpu::bind_ranks(topology, policy_named(plan.cpu_binding).policy, slots);
  plan.binding_here = binding.note;
  for (const auto& core : topology.cores) host.cpus += static_cast<std::uint32_t>(core.cpus.size());
  for (std::size_t i = 0; i < binding.ranks.size(); ++i) {
    host.ranks[i].cpus = cpu::cpu_list_text(binding.ranks[i].cpus);
    host.ranks[i].threads = binding.ranks[i].threads;
  }
}

void put_devices(const config::RunnerConfig& runner, const HostPlan& host, const Environment& user,
                 RankPlan& rank) {
  if (runner.devices == "all") return;
  std::vector<int> all;
  for (const RankPlan& other : host.ranks) all.push_back(other.slot);
  const config::ContainerConfig& container = runner.container;
  const bool own = runner.devices == "rank" || (container.used() && container.scope == "rank");
  const std::vector<int> slots = own ? std::vector<int>{rank.slot} : all;
  const std::string devices = fmt::format("{}", fmt::join(slots, ","));
  const auto is_users = [&](std::string_view name) {
    return std::ranges::find(user, name, &Environment::value_type::first) != user.end();
  };
  const auto put = [&](const char* name, const std::string& value) {
    if (!is_users(name)) rank.env.emplace_back(name, value);
  };
  // Slots use the numbering of the driver, NVML and kernel log; CUDA by default begins with the
  // fastest device. A CUDA_VISIBLE_DEVICES of the user keeps its meaning.
  if (!is_users("CUDA_VISIBLE_DEVICES")) put("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
  put("CUDA_VISIBLE_DEVICES", devices);  // numbers of the host; the runner converts them
  put("ROCR_VISIBLE_DEVICES", devices);  // every container has all AMD devices
}

}  // namespace sortie::launcher
