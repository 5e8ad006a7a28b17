// Keeper: answers to `sortie connections`.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "common/base/result.h"
#include "launcher/warm/keeper.h"

namespace sortie::launcher::warm {

std::string Keeper::list() const {
  const auto now = Clock::now();
  const auto seconds = [&](Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  };
  // One row per runner, and one per interactive session.
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Found& runner : runners_) {
    if (runner->state() == KeptRunner::State::closed) continue;
    const bool is_idle = runner->state() == KeptRunner::State::idle;
    nlohmann::ordered_json one = {{"host", runner->line().host},
                                  {"address", runner->line().address},
                                  {"state", is_idle ? "idle" : "busy"},
                                  {"bytes", runner->line().bytes}};
    if (is_idle) one["idle_s"] = seconds(runner->idle_since(), now);
    if (is_idle) one["ends_in_s"] = std::max(0.0, seconds(now, runner->until()));
    all.push_back(std::move(one));
  }
  for (const Person& person : persons_)
    all.push_back({{"host", person.line->host},
                   {"address", person.line->address},
                   {"state", person.terminal ? "terminal" : "command"},
                   {"bytes", person.traffic.bytes},
                   {"idle_s", seconds(person.traffic.last, now)}});
  return json_text(nlohmann::ordered_json{{"connections", std::move(all)}});
}

/// Closes idle runners at once, and busy ones at the end of their conversation.
std::string Keeper::close_hosts(const std::vector<std::string>& hosts) {
  std::size_t closed = 0, busy = 0;
  for (const Found& runner : runners_) {
    const bool meant =
        hosts.empty() || std::ranges::find(hosts, runner->line().host) != hosts.end();
    if (!meant || runner->state() == KeptRunner::State::closed) continue;
    if (runner->state() == KeptRunner::State::busy) {
      ++busy;
      runner->keep_no_longer();
    } else {
      ++closed;
      runner->close("`sortie connections close`");
    }
  }
  for (const Person& person : persons_)
    if (hosts.empty() || std::ranges::find(hosts, person.line->host) != hosts.end()) ++busy;
  std::erase_if(
      idle_, [](const auto& entry) { return entry.second->state() == KeptRunner::State::closed; });
  return nlohmann::ordered_json{{"closed", closed}, {"busy", busy}}.dump();
}

}  // namespace sortie::launcher::warm
