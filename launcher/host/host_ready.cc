#include "launcher/host/host_ready.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "common/base/printable.h"
#include "common/config/hostlist.h"
#include "common/cpu/cpu_list.h"

namespace sortie::launcher {

Result<HostFacts> check_ready(const HostPlan& host, const std::string& reached_at,
                              const wire::JobReady& ready) {
  const auto outside = [](const char* what) {
    return fail(ErrorCode::protocol, fmt::format("runner sent {} outside the grammar", what));
  };
  HostFacts facts;
  SORTIE_ASSIGN_OR_RETURN(facts.network.addresses, parse_addresses(ready.addresses));
  facts.network.name = host.name;
  facts.network.hostname = ready.hostname;
  facts.network.reached_at = reached_at;
  facts.network.routes = ready.routes;
  if (ready.master_port > 65535) return outside("a port");
  const auto well_formed = [](const std::string& set) { return bool(cpu::parse_cpu_list(set)); };
  if (!ready.cpu_sets.empty() && ready.cpu_sets.size() != host.ranks.size())
    return outside("CPU sets");
  if (!std::ranges::all_of(ready.cpu_sets, well_formed)) return outside("CPU sets");
  facts.cpu_sets = ready.cpu_sets;
  facts.cpus = ready.cpus;
  facts.memory_bytes = ready.memory_bytes;
  facts.machine_id = ready.machine_id;
  facts.gpus = ready.gpus;
  facts.no_work_dir = ready.no_work_dir != 0;
  return facts;
}

std::string work_dir_warning(std::vector<std::string> hosts, const LaunchPlan& plan) {
  return fmt::format(
      "{}: the current folder of this machine, {}, is not there, so ranks run in the home folder; "
      "set runner.work_dir to a folder that every host has",
      config::fold_host_names(std::move(hosts)), printable(plan.work_dir));
}

std::string shared_machine(const std::vector<std::pair<std::string, std::string>>& hosts) {
  std::map<std::string_view, std::string_view> first_name;
  for (const auto& [name, machine] : hosts) {
    if (machine.empty()) continue;
    const auto [entry, is_new] = first_name.emplace(machine, name);
    if (!is_new)
      return fmt::format(
          "runner.hosts: {} and {} are two names of one machine, so that ranks of both would use "
          "the "
          "same CPUs and devices; remove one of them, or set runner.allow_same_machine = true",
          entry->second, name);
  }
  return "";
}

}  // namespace sortie::launcher
