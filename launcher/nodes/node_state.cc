#include "launcher/nodes/node_state.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "common/base/printable.h"
#include "common/base/quantity.h"

namespace sortie::launcher {
using OrderedJson = nlohmann::ordered_json;
namespace {

using Json = nlohmann::json;

constexpr const char* kSchema = "sortie/nodes/1";
/// More names than any fleet has; bounds the file.
constexpr std::size_t kMaxSeen = 65536;
constexpr std::size_t kFewestBeforeBreaker = 2;

void forget_old(NodeState& state, double now) {
  std::erase_if(state.recent,
                [now](double time) { return time <= now - kBreakerWindowSeconds || time > now; });
}

Cordon read_cordon(const Json& json) {
  Cordon cordon;
  cordon.host = json.at("host").get<std::string>();
  cordon.reason = json.at("reason").get<std::string>();
  cordon.by = json.at("by").get<std::string>();
  cordon.run = json.value("run", "");
  cordon.time = json.at("time").get<double>();
  cordon.blames = json.value("blames", 0u);
  return cordon;
}

Blame read_blame(const Json& json) {
  Blame blame;
  blame.host = json.at("host").get<std::string>();
  blame.run = json.at("run").get<std::string>();
  blame.failure = json.at("class").get<std::string>();
  blame.cause = json.at("cause").get<std::string>();
  blame.times = json.at("times").get<std::uint32_t>();
  blame.time = json.at("time").get<double>();
  return blame;
}

/// More than weeks of failures produce; bounds the file.
constexpr std::size_t kMostBlames = 16384;

void sort_blames(std::vector<Blame>& blames) {
  std::ranges::sort(blames, {}, [](const Blame& one) { return std::tie(one.host, one.time); });
}

}  // namespace

const Cordon* NodeState::find(std::string_view host) const {
  const auto found = std::ranges::find(cordons, host, &Cordon::host);
  return found == cordons.end() ? nullptr : &*found;
}

std::set<std::string> NodeState::hosts() const {
  std::set<std::string> out;
  for (const Cordon& cordon : cordons) out.insert(cordon.host);
  return out;
}

std::vector<Blame> NodeState::blames_of(std::string_view host, double since) const {
  std::vector<Blame> out;
  for (const Blame& one : blames)
    if (one.host == host && one.time >= since) out.push_back(one);
  return out;
}

std::size_t most_cordons(const NodeState& state) {
  return std::max(kFewestBeforeBreaker, state.seen.size() / 10);
}

void cordon(NodeState& state, const Cordon& cordon) {
  std::erase_if(state.cordons, [&](const Cordon& one) { return one.host == cordon.host; });
  state.cordons.insert(std::ranges::lower_bound(state.cordons, cordon.host, {}, &Cordon::host),
                       cordon);
}

bool uncordon(NodeState& state, std::string_view host) {
  std::erase_if(state.blames, [host](const Blame& one) { return one.host == host; });
  return std::erase_if(state.cordons, [host](const Cordon& one) { return one.host == host; }) > 0;
}

RunCordon cordon_by_run(NodeState& state, const Cordon& one,
                        const std::vector<std::string>& hosts) {
  for (const std::string& host : hosts)
    if (state.seen.size() < kMaxSeen) state.seen.insert(host);
  if (state.find(one.host)) return RunCordon::there_already;
  forget_old(state, one.time);
  if (!state.breaker_open && state.recent.size() >= most_cordons(state))
    state.breaker_open = one.time;
  if (state.breaker_open) return RunCordon::breaker_open;
  state.recent.push_back(one.time);
  cordon(state, one);
  return RunCordon::done;
}

void note_blames(NodeState& state, const std::string& run, const std::vector<Blame>& blames,
                 double now) {
  const auto told = [&](const Blame& one) {
    return one.run == run && std::ranges::find(blames, one.host, &Blame::host) != blames.end();
  };
  std::erase_if(state.blames, [&](const Blame& one) {
    return told(one) || one.time < now - kBlamesKeptSeconds || one.time > now;
  });
  for (const Blame& one : blames)
    if (one.times > 0 && !one.host.empty() && state.blames.size() < kMostBlames)
      state.blames.push_back(one);
  sort_blames(state.blames);
}

std::set<std::string> chronic_hosts(const NodeState& state, std::int64_t runs, double window,
                                    double now) {
  std::map<std::string, std::int64_t> count;
  for (const Blame& one : state.blames)
    if (one.time >= now - window && one.time <= now) ++count[one.host];
  std::set<std::string> out;
  for (const auto& [host, blamed_by] : count)
    if (runs > 0 && blamed_by >= runs) out.insert(host);
  return out;
}

std::string blames_text(const std::vector<Blame>& blames, double window, double now) {
  if (blames.empty()) return {};
  std::map<std::string, std::uint32_t> classes;
  for (const Blame& one : blames) classes[one.failure] += one.times;
  std::string kinds;
  for (const auto& [failure, times] : classes)
    kinds += fmt::format("{}{}{}", kinds.empty() ? "" : ", ", printable(failure),
                         times == 1 ? std::string() : fmt::format(" ({} times)", times));
  return fmt::format("blamed by {} run{} within {}: {}; last {} ago: {}", blames.size(),
                     blames.size() == 1 ? "" : "s", short_time(window), kinds,
                     short_time(std::max(0.0, now - blames.back().time)),
                     printable(blames.back().cause));
}

nlohmann::ordered_json to_json(const NodeState& state) {
  OrderedJson cordoned = OrderedJson::array();
  for (const Cordon& one : state.cordons)
    cordoned.push_back({{"host", one.host},
                        {"reason", one.reason},
                        {"by", one.by},
                        {"run", one.run},
                        {"time", one.time},
                        {"blames", one.blames}});
  OrderedJson blames = OrderedJson::array();
  for (const Blame& one : state.blames)
    blames.push_back({{"host", one.host},
                      {"run", one.run},
                      {"class", one.failure},
                      {"cause", one.cause},
                      {"times", one.times},
                      {"time", one.time}});
  return {{"schema", kSchema},
          {"cordoned", cordoned},
          {"breaker",
           {{"open_since",
             state.breaker_open ? OrderedJson(*state.breaker_open) : OrderedJson(nullptr)},
            {"recent", state.recent}}},
          {"seen", state.seen},
          {"blames", blames}};
}

Result<NodeState> parse_node_state(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return fail(ErrorCode::data, "it is no JSON");
  try {
    if (const auto schema = json.at("schema").get<std::string>(); schema != kSchema)
      return fail(ErrorCode::data, fmt::format("its schema is '{}', and this version reads {}",
                                               printable(schema), kSchema));
    NodeState state;
    for (const Json& one : json.at("cordoned")) cordon(state, read_cordon(one));
    const Json& breaker = json.at("breaker");
    if (const Json& since = breaker.at("open_since"); !since.is_null())
      state.breaker_open = since.get<double>();
    state.recent = breaker.at("recent").get<std::vector<double>>();
    state.seen = json.at("seen").get<std::set<std::string>>();
    // Missing in files of earlier versions.
    for (const Json& one : json.value("blames", Json::array()))
      state.blames.push_back(read_blame(one));
    sort_blames(state.blames);
    return state;
  } catch (const Json::exception& error) {
    return fail(ErrorCode::data, printable(error.what()));
  }
}

std::string cordon_text(const Cordon& one, double now) {
  return fmt::format("by {}{} {} ago: {}", printable(one.by),
                     one.run.empty() ? "" : fmt::format(", run {},", printable(one.run)),
                     short_time(std::max(0.0, now - one.time)), printable(one.reason));
}

}  // namespace sortie::launcher
