#include "trainer/loop/crowded_hosts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "common/config/hostlist.h"
#include "common/cpu/cpu_list.h"

namespace sortie::trainer {

std::string crowded_hosts(Communicator& communicator, const RankContext& rank) {
  struct Host {
    int threads = 0;
    std::set<std::uint32_t> cpus;  // of all its ranks; bound ranks have different ones
  };
  const nlohmann::json mine = {rank.host, rank.threads, cpu::allowed_cpus()};
  std::map<std::string, Host> hosts;
  for (const std::string& text : communicator.all_gather(mine.dump())) {
    const nlohmann::json facts = nlohmann::json::parse(text);
    Host& host = hosts[facts[0].get<std::string>()];
    host.threads += facts[1].get<int>();
    const auto cpus = facts[2].get<std::vector<std::uint32_t>>();
    host.cpus.insert(cpus.begin(), cpus.end());
  }
  std::map<std::pair<int, std::size_t>, std::vector<std::string>> crowded;
  for (const auto& [name, host] : hosts)
    if (static_cast<std::size_t>(host.threads) > host.cpus.size())
      crowded[{host.threads, host.cpus.size()}].push_back(name);
  if (crowded.empty()) return {};
  std::vector<std::string> parts;
  for (const auto& [numbers, names] : crowded)
    parts.push_back(fmt::format("{}: {} compute threads on {} core{}",
                                config::fold_host_names(names), numbers.first, numbers.second,
                                numbers.second == 1 ? "" : "s"));
  return fmt::format(
      "more compute threads than cores, so steps are slow: {}; set trainer.threads lower, or give "
      "these hosts fewer slots",
      fmt::join(parts, ", "));
}

}  // namespace sortie::trainer
