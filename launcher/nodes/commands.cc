#include "launcher/nodes/commands.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/json_text.h"
#include "common/base/printable.h"
#include "common/base/quantity.h"
#include "common/config/hostlist.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace {

std::size_t recent_cordons(const NodeState& state, double now) {
  return static_cast<std::size_t>(std::ranges::count_if(
      state.recent, [now](double time) { return time > now - kBreakerWindowSeconds; }));
}

std::string breaker_text(const NodeState& state, double now) {
  const std::string counts =
      fmt::format("runs cordoned {} within 10 minutes, {} at most",
                  counted(recent_cordons(state, now), "host"), most_cordons(state));
  if (!state.breaker_open) return fmt::format("breaker: closed ({})\n", counts);
  return fmt::format(
      "breaker: open since {} ago: runs cordon no host, because too many failed at once, which "
      "is seldom the hosts' fault; find out why (network? storage?), then `sortie nodes breaker "
      "reset`\n",
      short_time(std::max(0.0, now - *state.breaker_open)));
}

/// Blamed hosts, cordoned or not.
std::string history_text(const NodeState& state, double now) {
  std::set<std::string> hosts;
  std::size_t width = 0;
  for (const Blame& one : state.blames)
    if (one.time >= now - kBlamesKeptSeconds && hosts.insert(one.host).second)
      width = std::max(width, printable(one.host).size());
  if (hosts.empty()) return {};
  std::string out = "blamed for failures:\n";
  for (const std::string& host : hosts)
    out += fmt::format(
        "  {:<{}}  {}\n", printable(host), width,
        blames_text(state.blames_of(host, now - kBlamesKeptSeconds), kBlamesKeptSeconds, now));
  return out;
}

}  // namespace

std::string nodes_text(const NodeState& state, double now) {
  const std::string rest = history_text(state, now) + breaker_text(state, now);
  if (state.cordons.empty()) return "no host is cordoned\n" + rest;
  std::size_t width = 4, by = 2;
  const auto who = [](const Cordon& one) { return printable(one.run.empty() ? one.by : one.run); };
  for (const Cordon& one : state.cordons) {
    width = std::max(width, printable(one.host).size());
    by = std::max(by, who(one).size());
  }
  std::string out = fmt::format("{:<{}}  {:>7}  {:<{}}  {:>6}  {}\n", "host", width, "since", "by",
                                by, "blames", "reason");
  for (const Cordon& one : state.cordons)
    out += fmt::format("{:<{}}  {:>7}  {:<{}}  {:>6}  {}\n", printable(one.host), width,
                       short_time(std::max(0.0, now - one.time)), who(one), by,
                       one.blames == 0 ? "-" : std::to_string(one.blames), printable(one.reason));
  return out + rest;
}

std::string nodes_json(const NodeState& state, const NodeStore& store, double now) {
  nlohmann::ordered_json json = to_json(state);
  json["breaker"]["open"] = state.breaker_open.has_value();
  json["breaker"]["within_window"] = recent_cordons(state, now);
  json["breaker"]["most"] = most_cordons(state);
  json["file"] = store.file().string();
  return json_text(json, 2) + "\n";
}

Result<std::string> list_nodes(bool json) {
  SORTIE_ASSIGN_OR_RETURN(const NodeStore store, NodeStore::open());
  SORTIE_ASSIGN_OR_RETURN(const NodeState state, store.read());
  return json ? nodes_json(state, store, unix_time()) : nodes_text(state, unix_time());
}

Result<std::string> cordon_nodes(const std::vector<std::string>& hosts, const std::string& reason) {
  constexpr std::size_t kMostBytes = 1000;
  if (reason.empty() || reason.size() > kMostBytes || printable(reason) != reason)
    return fail(
        ErrorCode::usage,
        fmt::format("sortie: --reason: a text of 1 to {} characters in one line", kMostBytes));
  SORTIE_ASSIGN_OR_RETURN(const NodeStore store, NodeStore::open());
  SORTIE_TRY(store.change([&](NodeState& state) {
    for (const std::string& host : hosts)
      cordon(state, {host, reason, this_user(), "", unix_time(), 0});
  }));
  return fmt::format(
      "{}: cordoned; none of your runs starts there. Runs on them continue until "
      "their next restart\n",
      config::fold_host_names(hosts));
}

Result<std::string> uncordon_nodes(const std::vector<std::string>& hosts) {
  SORTIE_ASSIGN_OR_RETURN(const NodeStore store, NodeStore::open());
  std::vector<std::string> done, others;
  SORTIE_TRY(store.change([&](NodeState& state) {
    for (const std::string& host : hosts) (uncordon(state, host) ? done : others).push_back(host);
  }));
  std::string out;
  if (!done.empty()) out += fmt::format("{}: uncordoned\n", config::fold_host_names(done));
  if (!others.empty()) out += fmt::format("{}: not cordoned\n", config::fold_host_names(others));
  return out;
}

Result<std::string> show_breaker() {
  SORTIE_ASSIGN_OR_RETURN(const NodeStore store, NodeStore::open());
  SORTIE_ASSIGN_OR_RETURN(const NodeState state, store.read());
  return breaker_text(state, unix_time());
}

Result<std::string> reset_breaker() {
  SORTIE_ASSIGN_OR_RETURN(const NodeStore store, NodeStore::open());
  bool was_open = false;
  SORTIE_TRY(store.change([&](NodeState& state) {
    was_open = state.breaker_open.has_value();
    state.breaker_open.reset();
    state.recent.clear();
  }));
  return std::string(was_open ? "breaker: closed; runs cordon sick hosts again\n"
                              : "breaker: was closed\n");
}

}  // namespace sortie::launcher
