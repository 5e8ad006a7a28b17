#include "launcher/view/attempts_text.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "common/base/quantity.h"
#include "common/config/hostlist.h"
#include "launcher/console/console.h"

namespace sortie::launcher {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string how_it_ended(const AttemptView& attempt) {
  if (!attempt.ended) return attempt.all_running ? "it runs" : "its ranks are being started";
  if (attempt.end.exit_code == 0) return "every rank exited 0";
  if (attempt.end.failure == FailureClass::planned) return attempt.end.cause;
  return fmt::format("{} (class {}, exit code {})", attempt.end.cause,
                     failure_class_name(attempt.end.failure), attempt.end.exit_code);
}

/// "; from step 40 in memory (3 steps lost)"; empty for a program that reports no training.
std::string where_it_went_on(const AttemptView& attempt) {
  if (!attempt.resumed) return {};
  const AttemptResumed& resumed = *attempt.resumed;
  std::string text = fmt::format("; from step {}", resumed.step);
  if (resumed.from == "memory") text += " in memory";
  if (resumed.from == "disk") text += " on the disk";
  if (resumed.lost_steps) text += fmt::format(" ({} lost)", counted(*resumed.lost_steps, "step"));
  return text;
}

OrderedJson resumed_json(const AttemptResumed& resumed) {
  return {{"from", resumed.from},
          {"step", resumed.step},
          {"path", resumed.path.empty() ? OrderedJson() : OrderedJson(resumed.path)},
          {"lost_steps", resumed.lost_steps ? OrderedJson(*resumed.lost_steps) : OrderedJson()}};
}

}  // namespace

std::string attempts_text(const RunView& view) {
  const bool decided = !view.attempts.empty() && !view.attempts.back().decision.empty();
  if (view.attempts.size() < 2 && !decided) return {};
  std::string out;
  for (const AttemptView& attempt : view.attempts) {
    const std::string ended =
        attempt.ended ? fmt::format(" to +{:.3f} s", *attempt.ended) : std::string();
    const std::string step = attempt.end.committed_step
                                 ? fmt::format("; step {} committed", *attempt.end.committed_step)
                                 : std::string();
    out += fmt::format("  attempt {}  +{:.3f} s{}, {}{}{}\n    {}\n", attempt.number, attempt.begun,
                       ended, config::fold_host_names(attempt.hosts), where_it_went_on(attempt),
                       step, how_it_ended(attempt));
    if (!attempt.decision.empty()) out += fmt::format("    {}\n", attempt.decision);
  }
  return printable_lines(out);
}

std::string attempt_end_text(const AttemptView& attempt) {
  if (attempt.end.failure == FailureClass::planned)
    return fmt::format("attempt {} has ended; {}", attempt.number, attempt.decision);
  return fmt::format("attempt {} has failed: {}; {}", attempt.number, attempt.end.cause,
                     attempt.decision);
}

OrderedJson attempts_json(const RunView& view) {
  OrderedJson list = OrderedJson::array();
  for (const AttemptView& attempt : view.attempts) {
    OrderedJson entry = {
        {"attempt", attempt.number},
        {"hosts", attempt.hosts},
        {"begun_s", attempt.begun},
        {"all_running_s", attempt.all_running ? OrderedJson(*attempt.all_running) : OrderedJson()},
        {"ended_s", attempt.ended ? OrderedJson(*attempt.ended) : OrderedJson()},
        {"resumed", attempt.resumed ? resumed_json(*attempt.resumed) : OrderedJson()}};
    if (attempt.ended) {
      entry["exit_code"] = attempt.end.exit_code;
      entry["committed_step"] =
          attempt.end.committed_step ? OrderedJson(*attempt.end.committed_step) : OrderedJson();
    }
    if (attempt.ended && attempt.end.exit_code != 0) {
      entry["class"] = failure_class_name(attempt.end.failure);
      entry["cause"] = attempt.end.cause;
      entry["blamed"] = attempt.end.blamed_host;
    }
    if (!attempt.decision.empty()) entry["decision"] = attempt.decision;
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace sortie::launcher
