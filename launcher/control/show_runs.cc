#include "launcher/control/show_runs.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "common/base/quantity.h"
#include "common/config/hostlist.h"
#include "common/config/text.h"
#include "launcher/console/console.h"
#include "launcher/control/control_client.h"
#include "launcher/control/held_ranks.h"
#include "launcher/control/run_index.h"
#include "launcher/control/run_record.h"
#include "launcher/health/health_text.h"
#include "launcher/run/attempt_folder.h"
#include "launcher/run/run_folder.h"
#include "launcher/view/attempts_text.h"
#include "launcher/view/rounds_text.h"

namespace sortie::launcher {
namespace {

using OrderedJson = nlohmann::ordered_json;
constexpr double kLostNamedSeconds = 24 * 3600;

std::string ago(double then) {
  if (then <= 0) return "-";
  return short_time(std::max(0.0, unix_time() - then));
}

std::string dump(const OrderedJson& json) {
  return json_text(json, 2) + "\n";
}

OrderedJson run_json(const RunRecord& record, const TrainingView& training) {
  OrderedJson json = {{"run", record.id},
                      {"name", record.name},
                      {"state", run_state_name(record.state)},
                      {"folder", record.path.string()},
                      {"hosts", record.host_names()},
                      {"ranks", record.world_size},
                      {"argv", record.argv},
                      {"attempt", record.attempt},
                      {"restarts", record.restarts},
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

/// Training state of a run. For a run over sites, that of the most advanced site: after a round all
/// have the same weights.
TrainingView training_of(const RunRecord& record) {
  if (record.sites.empty()) return read_training(record.path);
  TrainingView farthest;
  std::int64_t most = -1;
  for (const std::string& site : record.sites) {
    TrainingView training = read_training(site_folder(record.path, site));
    const std::int64_t step = training.start ? training.step : -1;
    if (step < most || (step == most && farthest.start)) continue;
    most = step;
    farthest = std::move(training);
  }
  return farthest;
}

/// Answer of the supervisor, which must be alive on this machine.
struct Answer {
  std::string silence;    // why there is no answer; empty if it answers or none is possible
  nlohmann::json status;  // the answer; null if there is none
};
Answer ask_supervisor(const RunRecord& record) {
  if (!record.alive() || record.supervisor.elsewhere()) return {};
  if (record.state == RunState::orphaned)
    return {"its supervisor is gone; its watcher starts another one", nullptr};
  auto client = ControlClient::connect(record.path, record.supervisor.epoch);
  if (!client) return {client.error().message, nullptr};
  const nlohmann::json question = {{"op", "status"}};
  auto answer = client->ask(question, std::chrono::milliseconds(1000));
  if (!answer) return {answer.error().message, nullptr};
  return {"", std::move(*answer)};
}

/// Training progress of a rank, as last known to its supervisor.
struct RankPlace {
  std::uint64_t step = 0;
  std::string section;
  double standing_s = 0;  // seconds without progress
};
std::map<std::uint32_t, RankPlace> places_in(const nlohmann::json& status) {
  std::map<std::uint32_t, RankPlace> places;
  const auto progress = status.is_object() ? status.find("progress") : status.end();
  if (progress == status.end() || !progress->is_object()) return places;
  for (const auto& rank : progress->value("ranks", nlohmann::json::array()))
    places[rank.value("rank", 0u)] = {rank.value("step", std::uint64_t{0}),
                                      rank.value("section", std::string()),
                                      rank.value("standing_ms", 0.0) / 1000};
  return places;
}

/// "12 forward", and for how long if nothing has changed for some time.
std::string place_text(const RankPlace& place) {
  constexpr double kWorthAWord = 5;
  std::string text = fmt::format("{} {}", place.step, printable(place.section));
  if (place.standing_s >= kWorthAWord) text += fmt::format(" for {}", short_time(place.standing_s));
  return text;
}

/// For a run without a supervisor: that its hosts may hold its ranks, and which commands help;
/// empty if they can not.
std::string held_text(const RunRecord& record) {
  if (record.state != RunState::lost) return {};
  const double hold = hold_seconds(record.path).value_or(0);
  if (hold_left(last_sign_of_life(record.path), hold) <= 0) return {};
  return fmt::format("ranks for {} after they have lost their supervisor; {}", short_time(hold),
                     help_for_held(record.id));
}

std::string header(const RunRecord& record, const RunView& view, const std::string& quiet) {
  std::string out = fmt::format("{}  {}\n", record.id, record.state_text());
  const auto row = [&out](std::string_view name, const std::string& value) {
    if (!value.empty()) out += fmt::format("  {:<11} {}\n", name, printable(value));
  };
  row("name", record.name);
  row("command", record.command());
  row("hosts", fmt::format("{} ({})", config::fold_host_names(record.host_names()),
                           counted(record.world_size, "rank")));
  row("started", ago(record.started()) + " ago");
  if (record.result) row("took", short_time(record.result->ended - record.result->started));
  row("supervisor", fmt::format("{}{}", record.supervisor.process(),
                                record.supervisor.alive ? ""
                                : record.result         ? ", ended"
                                                        : ", gone"));
  row("trouble", quiet);
  row("hosts hold", held_text(record));
  if (view.restarts() > 0 || view.restarting())
    row("attempt", fmt::format("{} ({})", view.attempt(), counted(view.restarts(), "restart")));
  if (!view.cordoned.empty()) row("cordoned", config::fold_host_names(view.cordoned));
  // The failure that was seen first stopped the ranks; the first cause, known later, may be
  // another.
  row("stop", view.cause.empty() ? view.stop_reason : view.cause.substr(0, view.cause.find('\n')));
  row("hang", view.hang);
  for (const std::string& slow : view.stragglers) row("slow host", slow);
  for (const std::string& host : view.fit_again) row("fit again", host);
  if (record.alive()) row("planned", view.planned);
  row("round", rounds_text(view, unix_time()));
  if (view.adoptions > 0) row("adopted", counted(view.adoptions, "time"));
  row("folder", record.path.string());
  for (const auto& [name, value] : training_rows(view.training, record.training_run(), unix_time()))
    row(name, value);
  out += attempts_text(view);
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
        "{:<20}  {:<{}}  {:<10}  {:>5}  {:>8}  {:>7}  {:>15}  {:>8}  {:>8}  {:>7}  {:>10}  {:>8}  "
        "{}\n",
        cells...);
  };
  std::string out = line("run", "name", widest, "state", "ranks", "restarts", "age", "step", "loss",
                         "tokens/s", "ETA", "checkpoint", "best", "hosts");
  for (const Listed& run : runs) {
    const RunRecord& record = run.record;
    const TrainingCells cells = training_cells(run.training, record.alive(), unix_time());
    out += line(record.id, config::shorten(printable(record.name)), widest, record.state_text(),
                record.world_size, record.restarts, ago(record.started()), cells.step, cells.loss,
                cells.tokens_per_s, cells.eta, cells.checkpoint, cells.best,
                config::fold_host_names(record.host_names()));
  }
  return out;
}

}  // namespace

Result<std::string> ps_text(const std::string& log_dir, bool all, bool json) {
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(log_dir));
  std::vector<Listed> runs;
  std::size_t lost = 0;  // within the last day, not shown
  for (const auto& run : index.runs()) {
    auto record = read_run(run);
    if (!record) continue;  // just pruned, or not a run
    if (!all && !record->alive()) {
      // By its last sign of life: a run of many days may have been lost just now.
      lost += record->state == RunState::lost &&
              unix_time() - last_sign_of_life(run) < kLostNamedSeconds;
      continue;
    }
    TrainingView training = training_of(*record);
    runs.push_back({std::move(*record), std::move(training)});
  }
  if (json) {
    OrderedJson list = OrderedJson::array();
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

namespace {

struct HostRows {
  std::string table;
  OrderedJson hosts = OrderedJson::array();
};

/// Rows for the hosts and ranks of a run or of one of its sites.
HostRows host_rows(const RunRecord& record, RunView& view, const nlohmann::json& status) {
  HostRows out;
  const std::map<std::uint32_t, RankPlace> places = places_in(status);
  // The progress column exists only if ranks report progress.
  const auto line = [&places](const std::string& host, const std::string& rank,
                              const std::string& pid, const std::string& state,
                              const std::string& at, const std::string& status_text) {
    return fmt::format("{:<20}  {:>6}  {:>8}  {:<9}  {}{}\n", host, rank, pid, state,
                       places.empty() ? "" : fmt::format("{:<24}  ", at), status_text);
  };
  out.table = "\n" + line("host", "rank", "pid", "state", "step", "ended by");
  for (const RunRecord::Host& host : record.hosts) {
    std::string host_state = view.host_state[host.name];
    if (host_state.empty()) host_state = "waiting";
    OrderedJson ranks = OrderedJson::array();
    bool first = true;
    for (const std::uint32_t number : host.ranks) {
      RankView& rank = view.rank[number];
      // The runner ends a rank whose supervisor is gone, but that was not observed.
      if (rank.state == "running" && (!record.alive() || host_state == "lost")) rank.state = "lost";
      const auto place = places.find(number);
      const bool known = place != places.end() && rank.state == "running";
      OrderedJson entry = {
          {"rank", number}, {"state", rank.state}, {"pid", rank.pid}, {"status", rank.status}};
      if (known) {
        entry["step"] = place->second.step;
        entry["section"] = place->second.section;
        entry["standing_s"] = place->second.standing_s;
      }
      ranks.push_back(std::move(entry));
      out.table += line(first ? host.name : "", std::to_string(number),
                        rank.pid == 0 ? "-" : std::to_string(rank.pid), rank.state,
                        known ? place_text(place->second) : "", rank.status);
      first = false;
    }
    const std::string trouble = view.host_trouble[host.name];
    if (!trouble.empty()) out.table += fmt::format("  {}: {}\n", host_state, printable(trouble));
    out.table += health_rows(view.health, host.name);
    out.hosts.push_back({{"name", host.name},
                         {"state", host_state},
                         {"message", trouble},
                         {"ranks", ranks},
                         {"health", incidents_json(view.health, host.name)}});
  }
  return out;
}

/// JSON of one site of a run.
OrderedJson site_json(const std::string& name, const RunView& whole, const RunRecord& part,
                      RunView& view, OrderedJson hosts) {
  const auto known = std::ranges::find(whole.sites, name, &std::pair<std::string, SiteView>::first);
  const SiteView said = known == whole.sites.end() ? SiteView() : known->second;
  OrderedJson json = {{"site", name},
                      {"state", said.state == "removed" ? "removed" : run_state_name(part.state)},
                      {"attempt", part.attempt},
                      {"joined", said.joined},
                      {"steps_in_vain", said.steps_in_vain}};
  if (said.exit_code) json["exit_code"] = *said.exit_code;
  if (!said.text.empty()) json["text"] = said.text;
  json["training"] = training_json(view.training, part.training_run(), unix_time());
  json["attempts"] = attempts_json(view);
  json["hosts"] = std::move(hosts);
  return json;
}

}  // namespace

Result<std::string> status_text(const std::string& name, const std::string& log_dir, bool json) {
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(log_dir));
  SORTIE_ASSIGN_OR_RETURN(const auto run, index.find(name));
  SORTIE_ASSIGN_OR_RETURN(const RunRecord record, read_run(run));
  RunView view = read_journal(run);
  view.training = training_of(record);
  const Answer answer = ask_supervisor(record);
  const std::string& quiet = answer.silence;
  std::string table;
  OrderedJson hosts = OrderedJson::array(), sites = OrderedJson::array();
  if (record.sites.empty()) {
    HostRows rows = host_rows(record, view, answer.status);
    table = std::move(rows.table);
    hosts = std::move(rows.hosts);
  }
  for (const std::string& site : record.sites) {
    const auto part = read_run(site_folder(run, site));
    if (!part) continue;  // its plan is not complete yet
    RunView part_view = read_journal(part->path);
    part_view.training = read_training(part->path);
    HostRows rows = host_rows(*part, part_view, nullptr);
    OrderedJson entry = site_json(site, view, *part, part_view, std::move(rows.hosts));
    const auto in_vain = entry["steps_in_vain"].get<std::int64_t>();
    table += fmt::format("\nsite {}  {}{}{}\n", site,
                         entry["state"] == "removed" ? "removed" : part->state_text(),
                         part->attempt > 1 ? fmt::format(", attempt {}", part->attempt) : "",
                         in_vain > 0 ? fmt::format(", {} in vain", counted(in_vain, "step")) : "");
    table += attempts_text(part_view) + rows.table.substr(1);
    sites.push_back(std::move(entry));
  }
  if (!json) return header(record, view, quiet) + table;
  OrderedJson out = {{"schema", "sortie/status/1"}};
  out.update(run_json(record, view.training));
  out["attempts"] = attempts_json(view);
  out["answers"] = quiet.empty() && record.alive();
  out["hosts"] = hosts;
  out["hang"] = view.hang.empty() ? OrderedJson(nullptr) : OrderedJson(view.hang);
  out["stragglers"] = view.stragglers;
  out["fit_again"] = view.fit_again;
  out["planned"] = view.planned.empty() ? OrderedJson() : OrderedJson(view.planned);
  if (!record.sites.empty()) {
    out["rounds"] = rounds_json(view);
    out["sites"] = sites;
  }
  return dump(out);
}

}  // namespace sortie::launcher
