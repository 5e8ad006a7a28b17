#include "launcher/recovery/attempt_events.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json_member.h"

namespace sortie::launcher {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
using json_member::flag;
using json_member::number;
using json_member::text;
using json_member::u32;

std::optional<std::uint64_t> maybe(const Json& event, const char* key) {
  const auto it = event.find(key);
  if (it == event.end() || !it->is_number_unsigned()) return std::nullopt;
  return it->get<std::uint64_t>();
}
std::vector<std::string> texts(const Json& event, const char* key) {
  std::vector<std::string> out;
  const auto it = event.find(key);
  if (it == event.end() || !it->is_array()) return out;
  for (const Json& item : *it)
    if (item.is_string()) out.push_back(item.get<std::string>());
  return out;
}

}  // namespace

OrderedJson event_fields(const AttemptBegin& begin) {
  return {{"attempt", begin.attempt}, {"hosts", begin.hosts}, {"ranks", begin.ranks}};
}

AttemptBegin read_attempt_begin(const Json& event) {
  return {std::max(1u, u32(event, "attempt")), texts(event, "hosts"), u32(event, "ranks")};
}

OrderedJson event_fields(const AttemptResumed& resumed) {
  OrderedJson fields = {
      {"attempt", resumed.attempt}, {"from", resumed.from}, {"step", resumed.step}};
  if (!resumed.path.empty()) fields["path"] = resumed.path;
  if (resumed.lost_steps) fields["lost_steps"] = *resumed.lost_steps;
  return fields;
}

AttemptResumed read_attempt_resumed(const Json& event) {
  return {std::max(1u, u32(event, "attempt")), text(event, "from"),
          maybe(event, "step").value_or(0), text(event, "path"), maybe(event, "lost_steps")};
}

OrderedJson event_fields(const AttemptEnd& end) {
  OrderedJson fields = {{"attempt", end.attempt}, {"exit_code", end.exit_code}};
  if (end.exit_code != 0) {
    fields["class"] = failure_class_name(end.failure);
    fields["cause"] = end.cause;
  }
  if (end.rank) fields["rank"] = *end.rank;
  if (end.rank_code) fields["rank_code"] = *end.rank_code;
  if (!end.blamed_host.empty()) fields["blamed"] = end.blamed_host;
  if (!end.unusable_hosts.empty()) fields["unusable"] = end.unusable_hosts;
  if (end.broken) fields["broken"] = true;
  if (!end.slow_hosts.empty()) fields["slow"] = end.slow_hosts;
  if (end.committed_step) fields["committed_step"] = *end.committed_step;
  if (end.begun_at_step) fields["begun_at_step"] = *end.begun_at_step;
  if (end.reached_step) fields["reached_step"] = *end.reached_step;
  fields["started"] = end.started;
  fields["begun"] = end.begun;
  fields["ended"] = end.ended;
  return fields;
}

AttemptEnd read_attempt_end(const Json& event) {
  AttemptEnd end;
  end.attempt = std::max(1u, u32(event, "attempt"));
  end.exit_code = static_cast<int>(std::min(u32(event, "exit_code"), 255u));
  end.failure = failure_class_of(text(event, "class")).value_or(FailureClass::app);
  end.cause = text(event, "cause");
  if (const auto rank = maybe(event, "rank")) end.rank = static_cast<std::uint32_t>(*rank);
  if (const auto code = maybe(event, "rank_code")) end.rank_code = static_cast<int>(*code & 0xff);
  end.blamed_host = text(event, "blamed");
  for (std::string& host : texts(event, "unusable")) end.unusable_hosts.insert(std::move(host));
  end.broken = flag(event, "broken");
  for (std::string& host : texts(event, "slow")) end.slow_hosts.insert(std::move(host));
  end.committed_step = maybe(event, "committed_step");
  end.begun_at_step = maybe(event, "begun_at_step");
  end.reached_step = maybe(event, "reached_step");
  end.started = flag(event, "started");
  end.begun = number(event, "begun");
  end.ended = number(event, "ended");
  return end;
}

OrderedJson event_fields(const DecisionMade& made) {
  const Decision& decision = made.decision;
  const bool restart = decision.action == Decision::Action::restart;
  OrderedJson fields = {{"attempt", made.attempt},
                        {"action", restart ? "restart" : "stop"},
                        {"reason", decision.reason}};
  if (restart) {
    fields["pause_s"] = static_cast<double>(decision.pause.count()) / 1000;
    fields["hosts"] = decision.hosts;
    if (!decision.replaced.empty()) fields["replaced"] = decision.replaced;
  } else {
    fields["exit_code"] = decision.exit_code;
    fields["no_progress"] = decision.no_progress;
  }
  if (!decision.cordon.empty()) fields["cordoned"] = decision.cordon;
  return fields;
}

DecisionMade read_decision(const Json& event) {
  DecisionMade made;
  made.attempt = std::max(1u, u32(event, "attempt"));
  Decision& decision = made.decision;
  if (text(event, "action") == "restart") decision.action = Decision::Action::restart;
  decision.reason = text(event, "reason");
  decision.pause = std::chrono::milliseconds(
      static_cast<std::int64_t>(std::clamp(number(event, "pause_s"), 0.0, 1e9) * 1000));
  decision.hosts = texts(event, "hosts");
  decision.cordon = texts(event, "cordoned");
  decision.exit_code = static_cast<int>(std::min(u32(event, "exit_code"), 255u));
  decision.no_progress = flag(event, "no_progress");
  return made;
}

}  // namespace sortie::launcher
