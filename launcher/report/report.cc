#include "launcher/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/exit_code.h"
#include "launcher/console/console.h"

namespace sortie::launcher {
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

constexpr std::size_t kMaxLine = 4u << 20;
constexpr std::size_t kMaxNamed = 64;

/// A member of an event that may be missing or of another type: somebody may have edited the file.
double number(const Json& event, const char* key) {
  const auto it = event.find(key);
  return it != event.end() && it->is_number() ? it->get<double>() : 0;
}
std::string text(const Json& event, const char* key) {
  const auto it = event.find(key);
  return it != event.end() && it->is_string() ? it->get<std::string>() : std::string();
}
bool flag(const Json& event, const char* key) {
  const auto it = event.find(key);
  return it != event.end() && it->is_boolean() && it->get<bool>();
}

class Reader {
 public:
  explicit Reader(Report& report) : report_(report) {}

  void take(const Json& event) {
    const std::string name = text(event, "event");
    const double time = number(event, "time");
    if (report_.begun == 0) report_.begun = time;
    const double at = time - report_.begun;
    if (name == "begin") {
      report_.hosts = static_cast<std::size_t>(std::max(0.0, number(event, "hosts")));
      report_.ranks = static_cast<std::size_t>(std::max(0.0, number(event, "ranks")));
    } else if (name == "connected") {
      reach(report_.connected, event, at);
    } else if (name == "image") {
      report_.image_at = at;
      report_.image = text(event, "image");
      report_.image_id = text(event, "image_id");
      report_.image_pulled = static_cast<std::size_t>(std::max(0.0, number(event, "pulled")));
    } else if (name == "ready") {
      reach(report_.ready, event, at);
    } else if (name == "started") {
      report_.started = at;
    } else if (name == "rank_started") {
      if (++running_ == report_.ranks) report_.all_running = at;
    } else if (name == "cause") {
      report_.cause_at = number(event, "died_at") > 0
                             ? std::max(0.0, number(event, "died_at") - report_.begun)
                             : at;
      report_.cause = text(event, "text");
      report_.cause_what = text(event, "what");
      report_.cause_json = event.dump(-1, ' ', false, Json::error_handler_t::replace);
    } else if (name == "stop") {
      if (!report_.stop_at) report_.stop_at = at;
      report_.stop_reason = text(event, "reason");
      report_.stop_grace_ms =
          static_cast<std::uint32_t>(std::clamp(number(event, "grace_ms"), 0.0, 4e9));
    } else if (name == "rank_exited") {
      exited(event);
    } else if (name == "host_failed") {
      add(report_.failed_hosts, event, text(event, "message"));
    } else if (name == "link_restored") {
      add(report_.gaps, event,
          fmt::format("at +{:.3f} s connected again after {:.1f} s", at, number(event, "seconds")));
    } else if (name == "host_lost") {
      add(report_.lost, event, text(event, "message"));
    } else if (name == "swept") {
      add(report_.swept, event,
          fmt::format("reached again; {:.0f} processes had to be killed", number(event, "killed")));
    } else if (name == "unconfirmed") {
      add(report_.unconfirmed, event, text(event, "why"));
    } else if (name == "end") {
      report_.ended = at;
      report_.exit_code = static_cast<int>(std::clamp(number(event, "exit_code"), 0.0, 255.0));
    }
  }

 private:
  static void reach(Stage& stage, const Json& event, double at) {
    if (stage.hosts++ == 0) stage.first = at;
    stage.last = std::max(stage.last, at);
    if (stage.last == at) stage.slowest = text(event, "host");
  }
  static void add(std::vector<std::string>& list, const Json& event, const std::string& what) {
    if (list.size() < kMaxNamed) list.push_back(text(event, "host") + ": " + what);
  }
  void exited(const Json& event) {
    report_.leftovers_killed +=
        static_cast<std::size_t>(std::max(0.0, number(event, "leftovers_killed")));
    const std::string how = text(event, "status");
    if (how == "exit code 0") ++report_.exited_well;
    if (!flag(event, "consequence")) return;
    ++report_.consequences;
    auto& list = report_.aftermath;
    const auto known = std::ranges::find(list, how, &std::pair<std::string, std::size_t>::first);
    if (known != list.end())
      ++known->second;
    else if (list.size() < kMaxNamed)
      list.emplace_back(how, 1);
  }

  Report& report_;
  std::size_t running_ = 0;
};

std::string stage_line(const char* what, const Stage& stage, std::size_t hosts) {
  if (stage.hosts == 0) return {};
  std::string line = fmt::format("  +{:8.3f} s  {} of {} hosts {}", stage.last, stage.hosts,
                                 std::max(hosts, stage.hosts), what);
  if (stage.hosts > 1)
    line += fmt::format(" (first +{:.3f} s, last {})", stage.first, printable(stage.slowest));
  return line + "\n";
}

std::string list_of(const char* title, const std::vector<std::string>& lines) {
  if (lines.empty()) return {};
  std::string out = fmt::format("{}\n", title);
  for (const std::string& line : lines) out += "  " + printable(line) + "\n";
  return out;
}

}  // namespace

Result<Report> read_report(const fs::path& folder) {
  const fs::path path = folder / "events.jsonl";
  std::ifstream file(path);
  if (!file)
    return fail(
        ErrorCode::not_found,
        fmt::format("{}: cannot be read; was this folder made by `sortie run`?", path.string()));
  Report report;
  report.id = folder.filename().string();
  report.path = folder.string();
  Reader reader(report);
  for (std::string line; std::getline(file, line);) {
    const Json event = line.size() > kMaxLine ? Json() : Json::parse(line, nullptr, false);
    if (event.is_object())
      reader.take(event);
    else if (!file.eof())  // the last one may be about to be written
      ++report.unreadable_lines;
  }
  std::ranges::stable_sort(report.aftermath,
                           [](const auto& a, const auto& b) { return a.second > b.second; });
  return report;
}

std::string exit_meaning(const Report& report) {
  if (!report.exit_code) return {};
  if (report.cause_what == "exit" || report.cause_what == "mpi_abort")
    return "the code of the rank that failed first";
  return explain_exit_code(*report.exit_code).meaning;
}

std::string report_text(const Report& report) {
  std::string out = fmt::format("run {}: ", report.id);
  if (!report.exit_code)
    out += "no end is recorded: it still runs, or its launcher was killed\n";
  else
    out += fmt::format("exit code {} ({})\n", *report.exit_code, exit_meaning(report));
  out +=
      fmt::format("  {} ranks on {} hosts{}; {}\n\n", report.ranks, report.hosts,
                  report.ended ? fmt::format(", {}", short_time(*report.ended)) : "", report.path);
  out += stage_line("connected", report.connected, report.hosts);
  if (report.image_at)
    out += fmt::format("  +{:8.3f} s  image {} ({}) on all hosts, {}\n", *report.image_at,
                       printable(report.image), printable(report.image_id.substr(0, 19)),
                       report.image_pulled == 0 ? "none had to pull it"
                                                : fmt::format("{} pulled it", report.image_pulled));
  out += stage_line("ready", report.ready, report.hosts);
  if (report.started) out += fmt::format("  +{:8.3f} s  told to start\n", *report.started);
  if (report.all_running) out += fmt::format("  +{:8.3f} s  all ranks run\n", *report.all_running);
  if (report.cause_at)
    out += fmt::format("  +{:8.3f} s  first cause: {}\n", *report.cause_at,
                       printable(report.cause.substr(0, report.cause.find('\n'))));
  if (report.stop_at)
    out += fmt::format("  +{:8.3f} s  all told to stop: TERM, KILL after {:.3g} s\n",
                       *report.stop_at, report.stop_grace_ms / 1000.0);
  if (report.ended) out += fmt::format("  +{:8.3f} s  end\n", *report.ended);
  if (const auto rest = report.cause.find('\n'); rest != std::string::npos)
    out += "\n" + printable_lines(report.cause.substr(rest + 1)) + "\n";
  if (report.exited_well > 0 || report.consequences > 0)
    out += fmt::format("\n{} of {} ranks exited 0", report.exited_well, report.ranks);
  if (report.consequences > 0) {
    out += fmt::format("; {} ended after the first cause:", report.consequences);
    for (std::size_t i = 0; i < report.aftermath.size(); ++i)
      out += fmt::format("{} {} {}{}", i == 0 ? "" : ",", report.aftermath[i].second,
                         report.aftermath[i].first.starts_with("exit") ? "with " : "by ",
                         printable(report.aftermath[i].first));
  }
  if (report.exited_well > 0 || report.consequences > 0) out += "\n";
  if (report.leftovers_killed > 0)
    out += fmt::format("{} processes that ranks had left were killed\n", report.leftovers_killed);
  out += list_of("hosts that failed before the start:", report.failed_hosts);
  out += list_of("connections that broke while the run went on:", report.gaps);
  out += list_of("hosts that were lost:", report.lost);
  out += list_of("swept afterwards:", report.swept);
  out += list_of("not confirmed to be gone:", report.unconfirmed);
  if (report.unreadable_lines > 0)
    out += fmt::format("{} lines of events.jsonl could not be read\n", report.unreadable_lines);
  return out;
}

nlohmann::ordered_json report_json(const Report& report) {
  using Ordered = nlohmann::ordered_json;
  const auto maybe = [](const auto& value) { return value ? Ordered(*value) : Ordered(nullptr); };
  const auto stage = [](const Stage& s) {
    return Ordered{
        {"hosts", s.hosts}, {"first_s", s.first}, {"last_s", s.last}, {"slowest", s.slowest}};
  };
  Ordered aftermath = Ordered::object();
  for (const auto& [how, count] : report.aftermath) aftermath[how] = count;
  Ordered json = {{"schema", "sortie/report/1"},
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
  json["exit_code_meaning"] = report.exit_code ? Ordered(exit_meaning(report)) : Ordered(nullptr);
  json["cause"] = report.cause_json.empty() ? Ordered(nullptr)
                                            : Ordered::parse(report.cause_json, nullptr, false);
  json["exited_well"] = report.exited_well;
  json["consequences"] = report.consequences;
  json["aftermath"] = aftermath;
  json["leftovers_killed"] = report.leftovers_killed;
  json["failed_hosts"] = report.failed_hosts;
  json["link_gaps"] = report.gaps;
  json["lost"] = report.lost;
  json["swept"] = report.swept;
  json["unconfirmed"] = report.unconfirmed;
  return json;
}

}  // namespace sortie::launcher
