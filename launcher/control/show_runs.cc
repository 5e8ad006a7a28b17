#include "launcher/control/show_runs.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/config/hostlist.h"
#include "common/config/text.h"
#include "launcher/console/console.h"
#include "launcher/control/control_client.h"
#include "launcher/control/run_index.h"
#include "launcher/control/run_record.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace {

using Json = nlohmann::ordered_json;
constexpr double kLostShownSeconds = 24 * 3600;

std::string ago(double then) {
  if (then <= 0) return "-";
  return short_time(std::max(0.0, unix_time() - then));
}

std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json run_json(const RunRecord& record) {
  Json json = {{"run", record.id},
               {"state", run_state_name(record.state)},
               {"folder", record.path.string()},
               {"hosts", record.host_names()},
               {"ranks", record.world_size},
               {"argv", record.argv},
               {"started", record.started()}};
  if (record.result) {
    json["ended"] = record.result->ended;
    json["exit_code"] = record.result->exit_code;
    json["text"] = record.result->text;
  }
  json["supervisor"] = {{"pid", record.supervisor.pid},
                        {"machine", record.supervisor.machine},
                        {"epoch", record.supervisor.epoch},
                        {"alive", record.supervisor.alive}};
  return json;
}

/// Whether the living supervisor of this machine answers; empty when it does.
std::string silence(const RunRecord& record) {
  if (!record.alive() || record.supervisor.machine != machine_name()) return "";
  auto client = ControlClient::connect(record.path, record.supervisor.epoch);
  if (!client) return client.error().message;
  const nlohmann::json question = {{"op", "status"}};
  const auto answer = client->ask(question, std::chrono::milliseconds(1000));
  return answer ? "" : answer.error().message;
}

std::string header(const RunRecord& record, const RunStory& story, const std::string& quiet) {
  std::string out = fmt::format("{}  {}\n", record.id, record.state_text());
  const auto row = [&out](std::string_view name, const std::string& value) {
    if (!value.empty()) out += fmt::format("  {:<11} {}\n", name, printable(value));
  };
  row("command", record.command());
  row("hosts", fmt::format("{} ({} ranks)", config::fold_host_names(record.host_names()),
                           record.world_size));
  row("started", ago(record.started()) + " ago");
  if (record.result) row("took", short_time(record.result->ended - record.result->started));
  row("supervisor", fmt::format("pid {} on {}{}", record.supervisor.pid, record.supervisor.machine,
                                record.supervisor.alive ? ""
                                : record.result         ? ", ended"
                                                        : ", gone"));
  row("trouble", quiet);
  for (const std::string& notice : story.notices) row("", notice);
  row("folder", record.path.string());
  if (record.result && !record.result->text.empty())
    out += printable_lines(record.result->text) + "\n";
  return out;
}

}  // namespace

Result<std::string> ps_text(const std::string& log_dir, bool all, bool json) {
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(log_dir));
  std::vector<RunRecord> records;
  for (const auto& run : index.runs()) {
    auto record = read_run(run);
    if (!record) continue;  // it was pruned this moment, or is none
    const bool lost =
        record->state == RunState::lost && unix_time() - record->started() < kLostShownSeconds;
    if (all || record->alive() || lost) records.push_back(std::move(*record));
  }
  if (json) {
    Json runs = Json::array();
    for (const RunRecord& record : records) runs.push_back(run_json(record));
    return dump({{"schema", "sortie/ps/1"}, {"runs", runs}});
  }
  if (records.empty())
    return all ? "no runs yet\n" : "no run is alive; `sortie ps --all` lists the others\n";
  std::string out = fmt::format("{:<20}  {:<10}  {:<24}  {:>6}  {:>8}  {}\n", "run", "state",
                                "hosts", "ranks", "since", "command");
  for (const RunRecord& record : records)
    out += fmt::format("{:<20}  {:<10}  {:<24}  {:>6}  {:>8}  {}\n", record.id, record.state_text(),
                       config::fold_host_names(record.host_names()), record.world_size,
                       ago(record.started()), printable(config::shorten(record.command())));
  return out;
}

Result<std::string> status_text(const std::string& name, const std::string& log_dir, bool json) {
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(log_dir));
  SORTIE_ASSIGN_OR_RETURN(const auto run, index.find(name));
  SORTIE_ASSIGN_OR_RETURN(const RunRecord record, read_run(run));
  RunStory story = read_story(run);
  const std::string quiet = silence(record);
  Json hosts = Json::array();
  std::string table = fmt::format("\n{:<20}  {:>6}  {:>8}  {:<9}  {}\n", "host", "rank", "pid",
                                  "state", "ended by");
  for (const RunRecord::Host& host : record.hosts) {
    std::string host_state = story.hosts[host.name];
    if (host_state.empty()) host_state = "waiting";
    Json ranks = Json::array();
    bool first = true;
    for (const std::uint32_t number : host.ranks) {
      RankStory& rank = story.ranks[number];
      // What nobody has seen end may well have: its runner ends it without its supervisor.
      if (rank.state == "running" && (!record.alive() || host_state == "lost")) rank.state = "lost";
      ranks.push_back(
          {{"rank", number}, {"state", rank.state}, {"pid", rank.pid}, {"status", rank.status}});
      table += fmt::format("{:<20}  {:>6}  {:>8}  {:<9}  {}\n", first ? host.name : "", number,
                           rank.pid == 0 ? "-" : std::to_string(rank.pid), rank.state, rank.status);
      first = false;
    }
    const std::string trouble = story.trouble[host.name];
    if (!trouble.empty()) table += fmt::format("  {}: {}\n", host_state, printable(trouble));
    hosts.push_back(
        {{"name", host.name}, {"state", host_state}, {"message", trouble}, {"ranks", ranks}});
  }
  if (!json) return header(record, story, quiet) + table;
  Json out = {{"schema", "sortie/status/1"}};
  out.update(run_json(record));
  out["answers"] = quiet.empty() && record.alive();
  out["hosts"] = hosts;
  return dump(out);
}

}  // namespace sortie::launcher
