#include "launcher/plan/host_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace sortie::launcher {
namespace {

constexpr double kGibibyte = 1 << 30;
/// Ranks that need so many times the memory of their host are not started. The plan is more exact,
/// but what is used for a short time may lie in swap space.
constexpr double kHopeless = 2;

/// The memory that a rank needs on its host at least: if the precision depends on the CPU, that of
/// the one that needs less.
const training::ModelCost::Memory& least_memory(const ModelPlan& model) {
  return *std::ranges::min_element(model.cost.memory, {}, &training::ModelCost::Memory::on_host);
}

std::string in_gib(double bytes) {
  return fmt::format("{:.1f} GiB", bytes / kGibibyte);
}

/// What makes the ranks of a host need less: depends on what they need the memory for.
std::string remedy(const training::ModelCost::Memory& memory, double ranks, double there) {
  if (memory.part("device") > 0)  // a rank on a GPU
    return "set trainer.async_save = false, leave trainer.memory_checkpoint_interval out, or give "
           "it fewer slots";
  const auto state = static_cast<double>(memory.part("weights") + memory.part("gradients") +
                                         memory.part("optimizer"));
  if (ranks * state <= there)
    return "lower topology.micro_batch_size, set topology.activation_checkpointing_type = "
           "\"every_layer\", or give it fewer slots";
  return fmt::format(
      "weights, gradients and the optimizer's state of a rank take {} of it: share them out over "
      "more hosts with topology.parameter_sharding, topology.tensor_parallel_size or "
      "topology.pipeline_parallel_size, {}or use a smaller model",
      in_gib(state), ranks > 1 && state <= there ? "give it fewer slots, " : "");
}

/// Describes the lack of memory on a host, without its name, if its ranks need more than `times`
/// its `memory_bytes`; "" if they do not, or if the need or the memory is unknown. `judgement`
/// stands before the remedy.
std::string lack_of_memory(const LaunchPlan& plan, const HostPlan& host, std::uint64_t memory_bytes,
                           double times, std::string_view judgement) {
  if (!plan.model || plan.model->cost.memory.empty() || memory_bytes == 0) return "";
  const training::ModelCost::Memory& memory = least_memory(*plan.model);
  const auto one = static_cast<double>(memory.on_host());
  const auto ranks = static_cast<double>(host.ranks.size());
  const auto there = static_cast<double>(memory_bytes);
  if (ranks * one <= times * there) return "";
  return fmt::format("{} rank{} of {} need{} {}, and it has {}{}; {}", host.ranks.size(),
                     host.ranks.size() == 1 ? "" : "s", in_gib(one),
                     host.ranks.size() == 1 ? "s" : "", in_gib(ranks * one), in_gib(there),
                     judgement, remedy(memory, ranks, there));
}

}  // namespace

std::vector<std::string> memory_warnings(const LaunchPlan& plan) {
  std::vector<std::string> warnings;
  for (const HostPlan& host : plan.hosts)
    if (const std::string lack = lack_of_memory(plan, host, host.memory_bytes, 1, "");
        !lack.empty())
      warnings.push_back(fmt::format("{}: {}", host.name, lack));
  return warnings;
}

Result<> check_memory(const LaunchPlan& plan, const HostPlan& host, std::uint64_t memory_bytes) {
  const std::string lack =
      lack_of_memory(plan, host, memory_bytes, kHopeless,
                     ", less than half: the kernel would end these ranks, or other processes");
  if (lack.empty()) return {};
  return fail(ErrorCode::unsupported, lack);
}

}  // namespace sortie::launcher
