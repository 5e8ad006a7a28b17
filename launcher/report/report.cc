#include "launcher/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "common/base/quantity.h"
#include "common/config/hostlist.h"
#include "launcher/console/console.h"
#include "launcher/health/health_text.h"
#include "launcher/run/run_folder.h"
#include "launcher/view/attempts_text.h"
#include "launcher/view/rounds_text.h"

namespace sortie::launcher {
using OrderedJson = nlohmann::ordered_json;

namespace {

/// Events with their times in seconds since the start. The clocks of hosts are corrected for their
/// offset, so events may be added out of order; text() sorts them by time.
class Timeline {
 public:
  void add(const std::optional<double>& at, std::string what) {
    if (at) lines_.emplace_back(*at, std::move(what));
  }
  std::string text() {
    std::ranges::stable_sort(lines_, {}, &std::pair<double, std::string>::first);
    std::string out;
    for (const auto& [at, what] : lines_) out += fmt::format("  +{:8.3f} s  {}\n", at, what);
    return out;
  }

 private:
  std::vector<std::pair<double, std::string>> lines_;
};

void add_stage(Timeline& times, const char* what, const Stage& stage, std::size_t hosts) {
  if (stage.hosts == 0) return;
  std::string line =
      fmt::format("{} of {} {}", stage.hosts, counted(std::max(hosts, stage.hosts), "host"), what);
  if (stage.hosts > 1)
    line += fmt::format(" (first +{:.3f} s, last {})", stage.first, printable(stage.slowest));
  times.add(stage.last, std::move(line));
}

std::string list_of(const char* title, const std::vector<std::string>& lines) {
  if (lines.empty()) return {};
  std::string out = fmt::format("{}\n", title);
  for (const std::string& line : lines) out += "  " + printable(line) + "\n";
  return out;
}

}  // namespace

bool has_code_of_rank(const RunView& report) {
  if (!report.exit_code || *report.exit_code == kExitOk) return false;
  // The exit code is that of the rank, unless the run ended with one of its own: without progress,
  // or stopped in the pause after the attempt.
  const AttemptView* last = report.attempts.empty() ? nullptr : &report.attempts.back();
  const bool own_code =
      last && (last->no_progress || (last->ended && last->end.exit_code != *report.exit_code));
  return !own_code && (report.cause_what == "exit" || report.cause_what == "mpi_abort");
}

std::string exit_meaning(const RunView& report) {
  if (!report.exit_code) return {};
  if (*report.exit_code == kExitOk) return "every rank exited with 0";
  if (has_code_of_rank(report)) return "the code of the rank that failed first";
  return explain_exit_code(*report.exit_code).meaning;
}

std::string report_text(const RunView& report, const TrainingRun& training) {
  std::string out =
      fmt::format("run {}{}: ", report.id,
                  training.name.empty() ? "" : fmt::format(" ({})", printable(training.name)));
  if (!report.exit_code)
    out += training.alive
               ? "it still runs\n"
               : "no end is recorded: its supervisor was killed, or its machine went down\n";
  else
    out += fmt::format("exit code {} ({})\n", *report.exit_code, exit_meaning(report));
  out += fmt::format(
      "  {} on {}{}; {}\n\n", counted(report.ranks, "rank"), counted(report.hosts, "host"),
      report.ended ? fmt::format(", {}", short_time(*report.ended)) : "", report.path);
  Timeline times;
  add_stage(times, "connected", report.connected, report.hosts);
  times.add(report.image_at, fmt::format("image {} ({}) on all hosts, {}", printable(report.image),
                                         printable(report.image_id.substr(0, 19)),
                                         report.image_pulled == 0
                                             ? "none had to pull it"
                                             : fmt::format("{} pulled it", report.image_pulled)));
  add_stage(times, "ready", report.ready, report.hosts);
  times.add(report.started, "order to start sent");
  times.add(report.all_running, "all ranks run");
  times.add(report.hang_at, fmt::format("hang: {}", printable(report.hang)));
  times.add(
      report.cause_at,
      fmt::format("first cause: {}", printable(report.cause.substr(0, report.cause.find('\n')))));
  std::string stop = "order to stop sent";
  if (report.stop_grace_ms)
    stop += fmt::format(": TERM, KILL after {:.3g} s", *report.stop_grace_ms / 1000.0);
  times.add(report.stop_at, std::move(stop));
  for (const AdoptionView& adoption : report.adopted)
    times.add(
        adoption.at,
        fmt::format("supervisor {} took over from supervisor {}: {} adopted{}", adoption.epoch,
                    adoption.epoch - 1, counted(adoption.hosts.size(), "host"),
                    adoption.lost.empty()
                        ? ""
                        : fmt::format(", {} lost", config::fold_host_names(adoption.lost))));
  for (const auto& [at, what] : health_times(report.health)) times.add(at - report.begun, what);
  // It has a reason of its own if the run was stopped between two attempts.
  const std::string why = report.end_text.substr(0, report.end_text.find('\n'));
  times.add(report.ended, why.empty() || report.cause.starts_with(why)
                              ? "end"
                              : fmt::format("end: {}", printable(why)));
  out += times.text();
  if (const auto rest = report.cause.find('\n'); rest != std::string::npos)
    out += "\n" + printable_lines(report.cause.substr(rest + 1)) + "\n";
  if (const std::string sites = sites_text(report); !sites.empty()) out += "\nsites\n" + sites;
  if (const std::string rounds =
          rounds_text(report, report.ended ? report.begun + *report.ended : unix_time());
      !rounds.empty())
    out += fmt::format("\nlast round: {}\n", printable(rounds));
  if (const std::string attempts = attempts_text(report); !attempts.empty())
    out += "\nattempts; the times above are of the last one\n" + attempts;
  if (report.exited_well > 0 || report.consequences > 0)
    out += fmt::format("\n{} of {} exited 0", report.exited_well, counted(report.ranks, "rank"));
  if (report.consequences > 0) {
    out += fmt::format("; {} ended after the first cause:", report.consequences);
    for (std::size_t i = 0; i < report.aftermath.size(); ++i)
      out += fmt::format("{} {} {}{}", i == 0 ? "" : ",", report.aftermath[i].second,
                         report.aftermath[i].first.starts_with("exit") ? "with " : "by ",
                         printable(report.aftermath[i].first));
  }
  if (report.exited_well > 0 || report.consequences > 0) out += "\n";
  if (report.leftovers_killed > 0)
    out += fmt::format("{} killed that ranks had left\n",
                       report.leftovers_killed == 1
                           ? "1 process was"
                           : fmt::format("{} processes were", report.leftovers_killed));
  if (const auto rows = training_rows(report.training, training, unix_time()); !rows.empty()) {
    out += "\ntraining\n";
    for (const auto& [name, value] : rows)
      out += fmt::format("  {:<11} {}\n", name, printable(value));
  }
  out += list_of("hosts that failed before the start:", report.failed_hosts);
  out += list_of("hosts slower than the others:", report.stragglers);
  out += list_of("hosts that were fit again after the run had left them:", report.fit_again);
  out += list_of("connections that broke while the run went on:", report.gaps);
  out += list_of("hosts that were lost:", report.lost);
  out += health_report(report.health);
  out += list_of("swept afterwards:", report.swept);
  out += list_of("not confirmed to be gone:", report.unconfirmed);
  if (report.unreadable_lines > 0)
    out += fmt::format("{} of events.jsonl could not be read\n",
                       counted(report.unreadable_lines, "line"));
  return out;
}

nlohmann::ordered_json report_json(const RunView& report, const TrainingRun& training) {
  const auto maybe = [](const auto& value) {
    return value ? OrderedJson(*value) : OrderedJson(nullptr);
  };
  const auto stage = [](const Stage& s) {
    return OrderedJson{
        {"hosts", s.hosts}, {"first_s", s.first}, {"last_s", s.last}, {"slowest", s.slowest}};
  };
  OrderedJson aftermath = OrderedJson::object();
  for (const auto& [how, count] : report.aftermath) aftermath[how] = count;
  OrderedJson json = {{"schema", "sortie/report/1"},
                      {"run", report.id},
                      {"folder", report.path},
                      {"begun", report.begun},
                      {"hosts", report.hosts},
                      {"ranks", report.ranks},
                      {"connected", stage(report.connected)},
                      {"ready", stage(report.ready)}};
  if (report.image_at)
    json["image"] = {{"name", report.image},
                     {"id", report.image_id},
                     {"pulled", report.image_pulled},
                     {"at_s", *report.image_at}};
  json["started_s"] = maybe(report.started);
  json["all_running_s"] = maybe(report.all_running);
  json["cause_s"] = maybe(report.cause_at);
  json["stop_s"] = maybe(report.stop_at);
  json["end_s"] = maybe(report.ended);
  json["exit_code"] = maybe(report.exit_code);
  json["exit_code_meaning"] =
      report.exit_code ? OrderedJson(exit_meaning(report)) : OrderedJson(nullptr);
  json["cause"] = report.cause_json.empty() ? OrderedJson(nullptr)
                                            : OrderedJson::parse(report.cause_json, nullptr, false);
  OrderedJson adopted = OrderedJson::array();
  for (const AdoptionView& adoption : report.adopted)
    adopted.push_back({{"at_s", adoption.at},
                       {"supervisor", adoption.epoch},
                       {"hosts", adoption.hosts},
                       {"lost", adoption.lost}});
  json["adopted"] = adopted;
  json["restarts"] = report.restarts();
  json["attempts"] = attempts_json(report);
  json["cordoned"] = report.cordoned;
  json["name"] = training.name;
  json["training"] = training_json(report.training, training, unix_time());
  json["exited_well"] = report.exited_well;
  json["consequences"] = report.consequences;
  json["aftermath"] = aftermath;
  json["leftovers_killed"] = report.leftovers_killed;
  json["failed_hosts"] = report.failed_hosts;
  json["stragglers"] = report.stragglers;
  json["fit_again"] = report.fit_again;
  json["hang"] = report.hang_at ? OrderedJson{{"at_s", *report.hang_at},
                                              {"text", report.hang},
                                              {"stacks", report.hang_stacks}}
                                : OrderedJson(nullptr);
  json["link_gaps"] = report.gaps;
  json["lost"] = report.lost;
  OrderedJson health = OrderedJson::object();
  for (const std::string& host : report.health.hosts())
    health[host] = incidents_json(report.health, host);
  json["health"] = health;
  json["swept"] = report.swept;
  json["unconfirmed"] = report.unconfirmed;
  if (!report.sites.empty()) json["rounds"] = rounds_json(report);
  return json;
}

}  // namespace sortie::launcher
