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
#include "launcher/view/run_view.h"

namespace sortie::launcher {
namespace {

using Json = nlohmann::ordered_json;
constexpr double kLostNamedSeconds = 24 * 3600;

std::string ago(double then) {
  if (then <= 0) return "-";
  return short_time(std::max(0.0, unix_time() - then));
}

std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json run_json(const RunRecord& record, const TrainingView& training) {
  Json json = {{"run", record.id},
               {"name", record.name},
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
  json["training"] = training_json(training, record.training_run(), unix_time());
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

std::string header(const RunRecord& record, const RunView& view, const std::string& quiet) {
  std::string out = fmt::format("{}  {}\n", record.id, record.state_text());
  const auto row = [&out](std::string_view name, const std::string& value) {
    if (!value.empty()) out += fmt::format("  {:<11} {}\n", name, printable(value));
  };
  row("name", record.name);
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
  row("stop", view.stop_reason);
  if (view.adoptions > 0) row("adopted", fmt::format("{} times", view.adoptions));
  row("folder", record.path.string());
  for (const auto& [name, value] : training_rows(view.training, record.training_run(), unix_time()))
    row(name, value);
  if (record.result && !record.result->text.empty())
    out += printable_lines(record.result->text) + "\n";
  return out;
}

}  // namespace

namespace {

struct Listed {
  RunRecord record;
  TrainingView training;
};

std::string table(const std::vector<Listed>& runs) {
  std::size_t widest = 4;
  for (const Listed& run : runs)
    widest = std::max(widest, config::shorten(printable(run.record.name)).size());
  const auto line = [](const auto&... cells) {
    return fmt::format(
        "{:<20}  {:<{}}  {:<9}  {:>5}  {:>7}  {:>15}  {:>8}  {:>8}  {:>7}  {:>10}  {:>8}  {}\n",
        cells...);
  };
  std::string out = line("run", "name", widest, "state", "ranks", "age", "step", "loss", "tokens/s",
                         "ETA", "checkpoint", "best", "hosts");
  for (const Listed& run : runs) {
    const RunRecord& record = run.record;
    const TrainingCells cells = training_cells(run.training, record.alive(), unix_time());
    out +=
        line(record.id, config::shorten(printable(record.name)), widest, record.state_text(),
             record.world_size, ago(record.started()), cells.step, cells.loss, cells.tokens_per_s,
             cells.eta, cells.checkpoint, cells.best, config::fold_host_names(record.host_names()));
  }
  return out;
}

}  // namespace

Result<std::string> ps_text(const std::string& log_dir, bool all, bool json) {
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(log_dir));
  std::vector<Listed> runs;
  std::size_t lost = 0;  // of the last day, not shown
  for (const auto& run : index.runs()) {
    auto record = read_run(run);
    if (!record) continue;  // it was pruned this moment, or is none
    if (!all && !record->alive()) {
      lost +=
          record->state == RunState::lost && unix_time() - record->started() < kLostNamedSeconds;
      continue;
    }
    runs.push_back({std::move(*record), read_training(run)});
  }
  if (json) {
    Json list = Json::array();
    for (const Listed& run : runs) list.push_back(run_json(run.record, run.training));
    return dump({{"schema", "sortie/ps/1"}, {"runs", list}});
  }
  std::string out = !runs.empty() ? table(runs)
                    : all         ? "no runs yet\n"
                                  : "no run is alive; `sortie ps --all` lists the others\n";
  if (lost > 0)
    out += fmt::format(
        "{} run{} of the last day {} lost (no supervisor, no result); `sortie ps "
        "--all` lists {}\n",
        lost, lost == 1 ? "" : "s", lost == 1 ? "is" : "are", lost == 1 ? "it" : "them");
  return out;
}

Result<std::string> status_text(const std::string& name, const std::string& log_dir, bool json) {
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(log_dir));
  SORTIE_ASSIGN_OR_RETURN(const auto run, index.find(name));
  SORTIE_ASSIGN_OR_RETURN(const RunRecord record, read_run(run));
  RunView view = read_journal(run);
  view.training = read_training(run);
  const std::string quiet = silence(record);
  Json hosts = Json::array();
  std::string table = fmt::format("\n{:<20}  {:>6}  {:>8}  {:<9}  {}\n", "host", "rank", "pid",
                                  "state", "ended by");
  for (const RunRecord::Host& host : record.hosts) {
    std::string host_state = view.host_state[host.name];
    if (host_state.empty()) host_state = "waiting";
    Json ranks = Json::array();
    bool first = true;
    for (const std::uint32_t number : host.ranks) {
      RankView& rank = view.rank[number];
      // Its runner ends a rank whose supervisor is gone: nobody has seen whether it did.
      if (rank.state == "running" && (!record.alive() || host_state == "lost")) rank.state = "lost";
      ranks.push_back(
          {{"rank", number}, {"state", rank.state}, {"pid", rank.pid}, {"status", rank.status}});
      table += fmt::format("{:<20}  {:>6}  {:>8}  {:<9}  {}\n", first ? host.name : "", number,
                           rank.pid == 0 ? "-" : std::to_string(rank.pid), rank.state, rank.status);
      first = false;
    }
    const std::string trouble = view.host_trouble[host.name];
    if (!trouble.empty()) table += fmt::format("  {}: {}\n", host_state, printable(trouble));
    hosts.push_back(
        {{"name", host.name}, {"state", host_state}, {"message", trouble}, {"ranks", ranks}});
  }
  if (!json) return header(record, view, quiet) + table;
  Json out = {{"schema", "sortie/status/1"}};
  out.update(run_json(record, view.training));
  out["answers"] = quiet.empty() && record.alive();
  out["hosts"] = hosts;
  return dump(out);
}

}  // namespace sortie::launcher
