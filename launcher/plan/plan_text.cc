// The plan as text and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/base/json_text.h"
#include "common/base/quantity.h"
#include "common/base/shell_text.h"
#include "launcher/console/console.h"
#include "launcher/plan/plan_container.h"
#include "launcher/plan/plan_layout.h"
#include "launcher/plan/plan_traffic.h"

namespace sortie::launcher {
using OrderedJson = nlohmann::ordered_json;
namespace {

/// ADDRESS:PORT, with placeholders for values that are chosen at start.
std::string master_text(const LaunchPlan& plan) {
  const std::string& first = plan.hosts[0].name;
  std::string address = plan.master_addr.empty() ? plan.surveyed_addr : plan.master_addr;
  if (!plan.tunnel.empty() && plan.hosts.size() > 1)
    address = fmt::format("<chosen at start: address of {} in the tunnel>", first);
  if (address.empty() && !plan.interface.empty())
    address = fmt::format("<chosen at start: address of {} on {}>", first, plan.interface);
  else if (address.empty() && plan.hosts.size() == 1)
    address = "127.0.0.1";
  else if (address.empty())
    address = fmt::format("<chosen at start: address of {} towards the other hosts>", first);
  const std::string port = plan.master_port != 0
                               ? fmt::format("{}", plan.master_port)
                               : fmt::format("<chosen at start: free on {}>", first);
  return fmt::format("{}:{}", address, port);
}

std::string folder_text(const LaunchPlan& plan) {
  if (!plan.container) return plan.work_dir;
  return plan.container->workdir.empty() ? "<the image's>" : plan.container->workdir;
}

/// One command per container, for each host, even if they differ only in numbers and names.
std::string containers_text(const LaunchPlan& plan) {
  std::string out = fmt::format(
      "\n  containers, one per {}; ranks get their variables from Sortie, not from these "
      "commands\n",
      plan.container->scope == wire::ContainerScope::rank ? "rank" : "host");
  for (const HostPlan& host : plan.hosts) {
    const auto commands = container_commands(plan, host);
    SORTIE_CHECK(commands.has_value(), "{}", commands.error().message);  // as make_plan() checked
    out += fmt::format("  {}\n", host.name);
    for (const std::vector<std::string>& command : *commands)
      out += fmt::format("    {}\n", shell_text(command));
  }
  return out + "\n";
}

/// Title of the column with the slots of ranks: "device" if a host has GPUs, none if no host has
/// any, "slot" if a host was not surveyed.
std::string slot_title(const LaunchPlan& plan) {
  std::string title;
  for (const HostPlan& host : plan.hosts) {
    if (host.gpus.value_or(0) > 0) return "device";
    if (!host.gpus) title = "slot";
  }
  return title;
}

std::string slot_cell(const HostPlan& host, const RankPlan& rank) {
  return host.gpus == 0u ? "-" : fmt::format("{}", rank.slot);
}

}  // namespace

std::string plan_text(const LaunchPlan& plan) {
  std::string out = fmt::format("{} on {}\n\n", counted(plan.world_size, "rank"),
                                counted(plan.hosts.size(), "host"));
  std::size_t width = 4;
  for (const HostPlan& host : plan.hosts) width = std::max(width, host.name.size());
  const bool with_cpus = std::ranges::any_of(plan.hosts, [](const HostPlan& host) {
    return std::ranges::any_of(host.ranks, [](const RankPlan& rank) { return !rank.cpus.empty(); });
  });
  const std::string slots = slot_title(plan);
  const auto column = [&slots](const std::string& text) {
    return slots.empty() ? std::string() : fmt::format("  {:>6}", text);
  };
  out += fmt::format("  {:<{}}  {:>4}  {:>5}{}{}\n", "host", width, "rank", "local", column(slots),
                     with_cpus ? "  cpus" : "");
  for (const HostPlan& host : plan.hosts)
    for (const RankPlan& rank : host.ranks)
      out += fmt::format("  {:<{}}  {:>4}  {:>5}{}{}{}\n", rank.local_rank == 0 ? host.name : "",
                         width, rank.rank, rank.local_rank, column(slot_cell(host, rank)),
                         rank.cpus.empty() ? "" : "  ", rank.cpus);
  out += fmt::format("\n  program   {}\n", shell_text(plan.argv));
  out += fmt::format("  folder    {}\n", folder_text(plan));
  out += fmt::format("  master    {}\n", master_text(plan));
  if (!plan.interface.empty()) out += fmt::format("  network   {}\n", plan.interface);
  out += fmt::format("  cpus      {}{}\n", plan.cpu_binding,
                     plan.binding_here.empty() ? "" : ", here: " + plan.binding_here);
  out += fmt::format("  mpi       {}\n", plan.mpi);
  if (plan.batch)
    out += fmt::format("  batch     {} = micro {} x accumulation {} x data parallel {}\n",
                       plan.batch->global_batch_size, plan.batch->micro_batch_size,
                       plan.batch->gradient_accumulation_steps, plan.batch->data_parallel_size);
  if (plan.mesh) out += layout_text(plan);
  if (plan.model) out += model_text(plan) + traffic_text(plan);
  if (plan.container) out += fmt::format("  image     {}\n", plan.container->image);
  for (const auto& [path, name] : plan.stage)
    out += fmt::format("  stage     {} -> ~/.cache/sortie/stage/<hash of all>/{} on every host\n",
                       path, name);
  for (const auto& [name, value] : plan.env)
    out += fmt::format("  env       {}={}\n", name, shown_value(plan, name, value));
  out += fmt::format("  hash      {}\n", plan_hash(plan).substr(0, 16));
  for (const auto& warnings : {plan.config_warnings, warnings_of(plan)})
    for (const std::string& warning : warnings) out += fmt::format("  warning   {}\n", warning);
  if (plan.container) out += containers_text(plan);
  return printable_lines(out);  // the config may come from another user
}

nlohmann::ordered_json plan_json(const LaunchPlan& plan) {
  OrderedJson hosts = OrderedJson::array();
  for (const HostPlan& host : plan.hosts) {
    OrderedJson ranks = OrderedJson::array();
    for (const RankPlan& rank : host.ranks) {
      OrderedJson env = OrderedJson::object();
      for (const auto& [name, value] : rank.env) env[name] = value;
      ranks.push_back({{"rank", rank.rank},
                       {"local_rank", rank.local_rank},
                       {"slot", rank.slot},
                       {"env", env}});
      if (!rank.cpus.empty()) ranks.back()["cpus"] = rank.cpus;
    }
    hosts.push_back({{"name", host.name}, {"node_rank", host.node_rank}, {"ranks", ranks}});
    if (host.gpus) hosts.back()["gpus"] = *host.gpus;
    if (plan.container)
      if (const auto commands = container_commands(plan, host))
        hosts.back()["containers"] = *commands;
  }
  OrderedJson env = OrderedJson::object();
  for (const auto& [name, value] : plan.env) env[name] = shown_value(plan, name, value);
  OrderedJson stage = OrderedJson::array();
  for (const auto& [path, name] : plan.stage) stage.push_back({{"path", path}, {"name", name}});
  OrderedJson out = {{"schema", "sortie/plan/1"},
                     {"hash", plan_hash(plan)},
                     {"attempt", plan.attempt},
                     {"world_size", plan.world_size},
                     {"argv", plan.argv},
                     {"work_dir", plan.work_dir},
                     {"master_addr", plan.master_addr},
                     {"master_port", plan.master_port},
                     {"master", master_text(plan)},
                     {"network_interface", plan.interface},
                     {"network_tunnel", plan.tunnel},
                     {"cpu_binding", plan.cpu_binding},
                     {"mpi", plan.mpi},
                     {"stage", stage},
                     {"env", env},
                     {"hosts", hosts}};
  if (plan.container)
    out["container"] = {
        {"engine", plan.container->engine},
        {"image", plan.container->image},
        {"scope", plan.container->scope == wire::ContainerScope::rank ? "rank" : "host"}};
  if (plan.batch)
    out["batch"] = {{"global_batch_size", plan.batch->global_batch_size},
                    {"micro_batch_size", plan.batch->micro_batch_size},
                    {"gradient_accumulation_steps", plan.batch->gradient_accumulation_steps},
                    {"data_parallel_size", plan.batch->data_parallel_size}};
  if (plan.mesh) out["layout"] = layout_json(plan);
  if (plan.model) {
    out["model"] = model_json(*plan.model);
    if (!plan.beside_preset.empty()) out["model"]["beside_preset"] = plan.beside_preset;
    if (const OrderedJson traffic = traffic_json(plan); !traffic.empty()) out["traffic"] = traffic;
  }
  std::vector<std::string> warnings = plan.config_warnings;
  std::ranges::move(warnings_of(plan), std::back_inserter(warnings));
  if (!warnings.empty()) out["warnings"] = warnings;
  return out;
}

std::string plan_json_text(const LaunchPlan& plan) {
  return json_text(plan_json(plan), 2) + "\n";
}

}  // namespace sortie::launcher
