#include "launcher/control/run_record.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "common/base/json_member.h"
#include "common/base/json_text.h"
#include "common/config/hostlist.h"
#include "launcher/run/attempt_folder.h"
#include "launcher/view/run_view.h"

namespace sortie::launcher {
namespace fs = std::filesystem;

namespace {

using json_member::number;
using json_member::text;

constexpr std::size_t kMaxRecordBytes = 256u << 20;

nlohmann::json parse(std::string_view text) {
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

/// The program's name; for an interpreter (`python3 train.py`), the script's.
std::string program_name(const std::vector<std::string>& program) {
  if (program.empty()) return "";
  std::string name = fs::path(program.front()).filename().string();
  const bool interprets = name.starts_with("python") || name == "bash" || name == "sh" ||
                          name == "perl" || name == "node";
  if (!interprets || program.size() < 2 || program[1].starts_with('-')) return name;
  return fs::path(program[1]).filename().string();
}

/// Reads the hosts and ranks of the plan in `folder` into the record, after those that it has.
Result<> add_plan(const fs::path& folder, RunRecord& record) {
  SORTIE_ASSIGN_OR_RETURN(const std::string content,
                          read_file(folder / "plan.json", kMaxRecordBytes));
  const nlohmann::json plan = parse(content);
  if (!plan.is_object() || !plan.contains("hosts") || !plan["hosts"].is_array())
    return fail(ErrorCode::data, (folder / "plan.json").string() + ": is no plan of a run");
  record.argv.clear();
  for (const nlohmann::json& word : plan.value("argv", nlohmann::json::array()))
    if (word.is_string()) record.argv.push_back(word.get<std::string>());
  const std::uint32_t first = record.world_size;
  for (const nlohmann::json& json : plan["hosts"]) {
    if (!json.is_object()) continue;
    // The host of a site that has failed may be that of a later site.
    const std::string name = text(json, "name");
    auto host = std::ranges::find(record.hosts, name, &RunRecord::Host::name);
    if (host == record.hosts.end()) host = record.hosts.insert(host, {name, {}});
    for (const nlohmann::json& rank : json.value("ranks", nlohmann::json::array())) {
      if (!rank.is_object()) continue;
      host->ranks.push_back(first + static_cast<std::uint32_t>(number(rank, "rank")));
      host->slots.push_back(static_cast<int>(number(rank, "slot")));
      ++record.world_size;
    }
  }
  return {};
}

/// Replaces the hosts of the first plan by those that the sites have now: sites join and leave, and
/// spares take the place of hosts.
void read_hosts_of_sites(const fs::path& run, RunRecord& record) {
  RunRecord now;
  for (const std::string& site : record.sites) {
    const fs::path part = site_folder(run, site);
    const std::uint32_t attempt = latest_attempt(part);
    record.restarts += attempt - 1;
    std::error_code ignored;
    if (fs::exists(part / "removed", ignored)) continue;
    // A site that is just being added has no plan yet.
    (void)add_plan(attempt_folder(part, attempt), now);
  }
  if (now.hosts.empty()) return;
  record.hosts = std::move(now.hosts);
  record.world_size = now.world_size;
}

}  // namespace

Result<> write_result(const fs::path& run, const RunResult& result) {
  const nlohmann::ordered_json document = {
      {"schema", "sortie/result/1"},       {"run", run.filename().string()},
      {"exit_code", result.exit_code},     {"text", result.text},
      {"ended_after", result.ended_after}, {"aftermath", result.aftermath},
      {"started", result.started},         {"ended", result.ended}};
  return write_file_atomic(run / "result.json", json_text(document, 2) + "\n", 0600);
}

std::optional<RunResult> read_result(const fs::path& run) {
  const auto content = read_file(run / "result.json");
  if (!content) return std::nullopt;
  const nlohmann::json document = parse(*content);
  if (!document.is_object() || !document.contains("exit_code")) return std::nullopt;
  return RunResult{static_cast<int>(number(document, "exit_code")),
                   text(document, "text"),
                   static_cast<std::uint32_t>(number(document, "ended_after")),
                   text(document, "aftermath"),
                   number(document, "started"),
                   number(document, "ended")};
}

std::optional<RunResult> result_without_supervisor(const fs::path& run) {
  if (auto written = read_result(run)) return written;
  const RunView view = read_journal(run);
  if (!view.ended) return std::nullopt;
  return RunResult{view.exit_code.value_or(0), view.end_text, 0, "", view.begun,
                   view.begun + *view.ended};
}

std::string default_run_name(const fs::path& config, const std::vector<std::string>& program) {
  if (config.empty()) return program_name(program);
  // The config of an earlier run, which is continued: keep its name.
  if (config.filename() == "config.toml")
    if (const RunLabel earlier = read_label(config.parent_path()); !earlier.name.empty())
      return earlier.name;
  return config.stem().string();
}

Result<> write_label(const fs::path& run, const RunLabel& label) {
  const nlohmann::ordered_json document = {
      {"schema", "sortie/run/1"}, {"name", label.name}, {"config", label.config}};
  return write_file_atomic(run / "run.json", json_text(document, 2) + "\n", 0600);
}

RunLabel read_label(const fs::path& run) {
  const auto content = read_file(run / "run.json");
  if (!content) return {};
  const nlohmann::json document = parse(*content);
  if (!document.is_object()) return {};
  return {text(document, "name"), text(document, "config")};
}

std::string_view run_state_name(RunState state) {
  switch (state) {
    case RunState::starting:
      return "starting";
    case RunState::running:
      return "running";
    case RunState::restarting:
      return "restarting";
    case RunState::stopping:
      return "stopping";
    case RunState::orphaned:
      return "orphaned";
    case RunState::ended:
      return "ended";
    case RunState::lost:
      return "lost";
  }
  return "";
}

std::string RunRecord::state_text() const {
  if (result) return fmt::format("ended {}", result->exit_code);
  return std::string(run_state_name(state));
}

std::vector<std::string> RunRecord::host_names() const {
  std::vector<std::string> names;
  for (const Host& host : hosts) names.push_back(host.name);
  return names;
}

std::string RunRecord::command() const {
  std::string line;
  for (const std::string& word : argv) line += (line.empty() ? "" : " ") + word;
  return line;
}

double begin_of_run(const fs::path& run) {
  const SupervisorFacts first = supervisor_of(run, 1);
  return first.started > 0 ? first.started : read_journal(run).begun;
}

Result<RunRecord> read_run(const fs::path& run, std::uint32_t attempt) {
  RunRecord record;
  record.path = run;
  const std::uint32_t latest = latest_attempt(run);
  record.attempt = attempt == 0 ? latest : attempt;
  record.logs_of = attempt_folder(run, record.attempt);
  if (record.attempt > latest)
    return fail(ErrorCode::usage,
                fmt::format("--attempt {}: {} has had {} attempt{} so far", attempt,
                            run.filename().string(), latest, latest == 1 ? " only" : "s"));
  record.id = run.filename().string();
  record.name = read_label(run).name;
  SORTIE_TRY(add_plan(record.logs_of, record));
  record.restarts = record.attempt - 1;
  record.sites = sites_in(run);
  if (attempt == 0) read_hosts_of_sites(run, record);
  // The order matters: a supervisor writes the result before it exits. A site has the supervisor
  // and result of its run.
  const fs::path whole = run_of_site(run).value_or(run);
  record.supervisor = latest_supervisor(whole);
  record.supervised_since = begin_of_run(whole);
  const bool watched = !record.supervisor.alive && watcher_of(whole).alive;
  record.result = record.supervisor.alive ? read_result(whole) : result_without_supervisor(whole);
  if (whole != run) {
    record.id = whole.filename().string();
    record.name = read_label(whole).name;
    const RunView view = read_journal(run);
    if (view.ended)
      record.result = RunResult{view.exit_code.value_or(0), view.cause, 0, "", view.begun,
                                view.begun + *view.ended};
  }
  if (record.result) {
    record.state = RunState::ended;
  } else if (record.supervisor.alive) {
    const RunView view = read_journal(run);
    record.state = view.restarting() ? RunState::restarting
                   : view.stop_at    ? RunState::stopping
                   : view.started    ? RunState::running
                                     : RunState::starting;
  } else if (watched) {
    record.state = RunState::orphaned;
  }
  return record;
}

}  // namespace sortie::launcher
