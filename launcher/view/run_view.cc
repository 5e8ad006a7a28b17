#include "launcher/view/run_view.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "common/base/json_member.h"
#include "common/base/json_text.h"
#include "launcher/health/health_event.h"
#include "launcher/recovery/attempt_events.h"
#include "launcher/view/journal_event.h"

namespace sortie::launcher {
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

using json_member::flag;
using json_member::number;
using json_member::text;
using json_member::u32;

constexpr std::size_t kMaxLine = 4u << 20;
constexpr std::size_t kMaxNamed = 64;

std::size_t count(const Json& event, const char* key) {
  return static_cast<std::size_t>(std::clamp(number(event, key), 0.0, 1e15));
}

int exit_code_in(const Json& event) {
  return static_cast<int>(std::clamp(number(event, "exit_code"), 0.0, 255.0));
}

/// A host counts once per attempt: after an adoption it connects again. `reached`: those that
/// count.
void reach(Stage& stage, std::set<std::string>& reached, const Json& event, double at) {
  if (!reached.insert(text(event, "host")).second) return;
  if (stage.hosts++ == 0) stage.first = at;
  stage.last = std::max(stage.last, at);
  if (stage.last == at) stage.slowest = text(event, "host");
}
void add(std::vector<std::string>& list, const Json& event, const std::string& what) {
  if (list.size() < kMaxNamed) list.push_back(text(event, "host") + ": " + what);
}

/// Passes each line of a file to `sink`, which returns false for an unreadable line. Returns the
/// number of unreadable lines. Text after the last newline is ignored: it is still being written.
template <class Sink>
std::size_t read_lines(const fs::path& path, Sink&& sink) {
  std::ifstream file(path);
  std::size_t unreadable = 0;
  for (std::string line; std::getline(file, line);) {
    if (file.eof()) break;
    if (!sink(line)) ++unreadable;
  }
  return unreadable;
}

std::optional<Json> object_of(const std::string& line) {
  if (line.size() > kMaxLine) return std::nullopt;
  Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? std::optional(std::move(json)) : std::nullopt;
}

/// Whether the line is a step event. A long run has millions of them, and only the last matters.
bool is_step(const std::string& line) {
  return line.find(R"("type":"step")") != line.npos;
}

}  // namespace

void RunReducer::rank_exited(const Json& event) {
  view_.leftovers_killed += count(event, "leftovers_killed");
  const std::string how = text(event, "status");
  RankView& rank = view_.rank[u32(event, "rank")];
  rank.state = "ended";
  rank.status = how;
  if (how == "exit code 0") ++view_.exited_well;
  if (!flag(event, "consequence")) return;
  ++view_.consequences;
  auto& list = view_.aftermath;
  const auto known = std::ranges::find(list, how, &std::pair<std::string, std::size_t>::first);
  if (known != list.end())
    ++known->second;
  else if (list.size() < kMaxNamed)
    list.emplace_back(how, 1);
}

/// Begins an attempt and resets the fields of the current attempt. RunView::attempts keeps the
/// earlier ones.
void RunReducer::begin_attempt(const Json& event, double at) {
  AttemptBegin begin = read_attempt_begin(event);
  if (begin.attempt > 1) {
    view_.hosts = begin.hosts.size();
    view_.ranks = begin.ranks;
    view_.connected = view_.ready = Stage();
    view_.image_at = view_.started = view_.all_running = view_.cause_at = view_.stop_at =
        view_.hang_at = std::nullopt;
    view_.hang.clear();
    view_.hang_stacks.clear();
    view_.cause.clear();
    view_.planned.clear();
    view_.cause_what.clear();
    view_.cause_json.clear();
    view_.stop_reason.clear();
    view_.exited_well = view_.consequences = 0;
    view_.aftermath.clear();
    view_.rank.clear();
    view_.host_state.clear();
    view_.host_trouble.clear();
    view_.cgroups.clear();
    connected_.clear();
    ready_.clear();
    running_ = 0;
  }
  AttemptView& attempt = view_.attempts.emplace_back();
  attempt.number = begin.attempt;
  attempt.begun = at;
  attempt.hosts = std::move(begin.hosts);
}

void RunReducer::end_attempt(const Json& event, double at) {
  if (view_.attempts.empty()) view_.attempts.emplace_back();
  AttemptView& attempt = view_.attempts.back();
  attempt.end = read_attempt_end(event);
  attempt.ended = attempt.end.ended > 0 ? attempt.end.ended - view_.begun : at;
  // A supervisor that died, or a host that was lost, could not report these ends.
  for (auto& [number, rank] : view_.rank)
    if (rank.state == "running") rank.state = "lost";
}

void RunReducer::decision(const Json& event) {
  DecisionMade made = read_decision(event);
  std::ranges::move(made.decision.cordon, std::back_inserter(view_.cordoned));
  if (view_.attempts.empty()) return;
  AttemptView& attempt = view_.attempts.back();
  attempt.decision = std::move(made.decision.reason);
  attempt.restarts = made.decision.action == Decision::Action::restart;
  attempt.no_progress = made.decision.no_progress;
}

void RunReducer::cause(const Json& event, double at) {
  const double died_at = number(event, "died_at");
  view_.cause_at = died_at > 0 ? std::max(0.0, died_at - view_.begun) : at;
  view_.cause = text(event, "text");
  view_.cause_what = text(event, "what");
  view_.cause_json = json_text(event);
}

void RunReducer::end_run(const Json& event, double at) {
  if (!view_.attempts.empty()) view_.attempts.back().restarts = false;
  view_.ended = at;
  view_.exit_code = exit_code_in(event);
  view_.end_text = text(event, "text");
}

/// Adds a health event. Duplicates are skipped: hosts repeat their events to a supervisor that has
/// adopted the run.
void RunReducer::health(const Json& event, double time) {
  const std::string host = text(event, "host");
  const auto finding = finding_of(event);
  if (!finding) return;
  const std::size_t number = count(event, "n");
  if (number > 0 && !health_numbers_[host].insert(number).second) return;
  const auto used = event.find("used");
  view_.health.take(host, *finding, time, used == event.end() || *used != false);
}

SiteView& RunReducer::site(const std::string& name) {
  const auto known = std::ranges::find(view_.sites, name, &std::pair<std::string, SiteView>::first);
  return known != view_.sites.end() ? known->second
                                    : view_.sites.emplace_back(name, SiteView()).second;
}

void RunReducer::site_changed(const Json& event) {
  SiteView& known = site(text(event, "site"));
  // A site that was removed then ends, too; why is known already.
  if (known.state == "removed" && text(event, "state") == "ended") return;
  known.state = text(event, "state");
  known.exit_code.reset();
  if (event.contains("exit_code")) known.exit_code = exit_code_in(event);
  known.text = text(event, "text");
}

void RunReducer::round(const Json& event, double at) {
  RoundsView& rounds = view_.rounds;
  const std::string what = text(event, "what");
  if (what == "committed") {
    rounds.round = static_cast<std::int64_t>(std::clamp(number(event, "round"), 0.0, 9e15));
    rounds.members = json_member::texts(event, "sites");
    rounds.at = at;
    ++rounds.commits;
    rounds.exchanging += std::max(0.0, number(event, "seconds"));
    rounds.waiting += std::max(0.0, number(event, "waited"));
    rounds.trouble.clear();
  } else if (what == "begun") {
    rounds.round = static_cast<std::int64_t>(std::clamp(number(event, "round"), 0.0, 9e15));
    rounds.trouble.clear();
  } else if (what == "joined") {
    SiteView& joined = site(text(event, "site"));
    ++joined.joined;
    joined.steps_in_vain +=
        static_cast<std::int64_t>(std::clamp(number(event, "steps_in_vain"), 0.0, 9e15));
  } else if (what == "aborted") {
    ++rounds.aborts;
    rounds.trouble = text(event, "text");
  } else if (what == "excluded") {
    ++rounds.excluded;
  } else if (what == "paused") {
    rounds.trouble = text(event, "text");
  } else if (what == "resumed") {
    rounds.trouble.clear();
  }
}

void RunReducer::journal(const Json& event) {
  const double time = number(event, "time");
  if (view_.begun == 0) view_.begun = time;
  const double at = time - view_.begun;
  const auto kind = journal_event(text(event, "event"));
  if (!kind) return;
  const std::string host = text(event, "host");
  switch (*kind) {
    case JournalEvent::begin:
      view_.hosts = count(event, "hosts");
      view_.ranks = count(event, "ranks");
      for (const std::string& name : json_member::texts(event, "sites")) site(name).state = "begun";
      break;
    case JournalEvent::attempt:
      begin_attempt(event, at);
      break;
    case JournalEvent::attempt_end:
      end_attempt(event, at);
      break;
    case JournalEvent::decision:
      decision(event);
      break;
    case JournalEvent::connected:
      reach(view_.connected, connected_, event, at);
      view_.host_state[host] = "connected";
      break;
    case JournalEvent::image:
      view_.image_at = at;
      view_.image = text(event, "image");
      view_.image_id = text(event, "image_id");
      view_.image_pulled = count(event, "pulled");
      break;
    case JournalEvent::ready:
      reach(view_.ready, ready_, event, at);
      view_.host_state[host] = "ready";
      if (const std::string cgroup = text(event, "cgroup"); cgroup.starts_with("v2 "))
        view_.cgroups[host] = cgroup.substr(3);
      break;
    case JournalEvent::started:
      view_.started = at;
      break;
    case JournalEvent::rank_started:
      view_.rank[u32(event, "rank")] = {"running", u32(event, "pid"), ""};
      if (++running_ == view_.ranks) {
        view_.all_running = at;
        if (!view_.attempts.empty()) view_.attempts.back().all_running = at;
      }
      break;
    case JournalEvent::rank_exited:
      rank_exited(event);
      break;
    case JournalEvent::resumed:
      if (!view_.attempts.empty()) view_.attempts.back().resumed = read_attempt_resumed(event);
      break;
    case JournalEvent::cause:
      cause(event, at);
      break;
    case JournalEvent::stop:
      if (!view_.stop_at) view_.stop_at = at;
      view_.stop_reason = text(event, "reason");
      if (event.contains("grace_ms")) view_.stop_grace_ms = u32(event, "grace_ms");
      break;
    case JournalEvent::host_failed:
      view_.host_state[host] = "failed";
      view_.host_trouble[host] = text(event, "message");
      add(view_.failed_hosts, event, text(event, "message"));
      break;
    case JournalEvent::host_lost:
      view_.host_state[host] = "lost";
      view_.host_trouble[host] = text(event, "message");
      add(view_.lost, event, text(event, "message"));
      break;
    case JournalEvent::link_lost:
      view_.host_state[host] = "reconnecting";
      view_.host_trouble[host] = text(event, "message");
      break;
    case JournalEvent::link_restored:
      view_.host_state[host] = "ready";
      view_.host_trouble.erase(host);
      add(view_.gaps, event,
          fmt::format("at +{:.3f} s connected again after {:.1f} s", at, number(event, "seconds")));
      break;
    case JournalEvent::fault:
      add(view_.gaps, event,
          fmt::format("at +{:.3f} s `sortie chaos` cut the link for {:.1f} s", at,
                      number(event, "seconds")));
      break;
    case JournalEvent::health:
      health(event, time);
      break;
    case JournalEvent::swept:
      add(view_.swept, event,
          fmt::format("reached again; {} processes had to be killed", count(event, "killed")));
      break;
    case JournalEvent::unconfirmed:
      view_.host_state[host] = "lost";
      view_.host_trouble[host] = text(event, "why");
      add(view_.unconfirmed, event, text(event, "why"));
      break;
    case JournalEvent::adopted:
      ++view_.adoptions;
      view_.adopted.push_back({at, u32(event, "epoch"), json_member::texts(event, "hosts"),
                               json_member::texts(event, "lost")});
      break;
    case JournalEvent::hang:
      view_.hang_at = at;
      view_.hang = text(event, "text");
      view_.hang_stacks = text(event, "stacks");
      break;
    case JournalEvent::straggler:
      add(view_.stragglers, event,
          fmt::format("own work {:.2f} times the median of all hosts, since +{:.1f} s",
                      number(event, "ratio"), at));
      break;
    case JournalEvent::host_fit:
      add(view_.fit_again, event, fmt::format("checked at +{:.1f} s", at));
      break;
    case JournalEvent::planned:
      view_.planned += (view_.planned.empty() ? "" : "; ") + text(event, "reason");
      break;
    case JournalEvent::site:
      site_changed(event);
      break;
    case JournalEvent::round:
      round(event, at);
      break;
    case JournalEvent::end:
      end_run(event, at);
      break;
    case JournalEvent::staged:
    case JournalEvent::tunnel:
    case JournalEvent::master:
    case JournalEvent::notice:
    case JournalEvent::event_refused:
    case JournalEvent::metrics_dropped:
    case JournalEvent::stalled:
    case JournalEvent::not_ended:
      break;
  }
}

void RunReducer::metric(const Json& event) {
  if (const auto known = training::read_event(event))
    view_.training.take(*known, number(event, "time"));
}

RunView read_journal(const fs::path& folder) {
  RunView view;
  view.id = folder.filename().string();
  view.path = folder.string();
  RunReducer reducer(view);
  view.unreadable_lines = read_lines(folder / "events.jsonl", [&](const std::string& line) {
    const auto event = object_of(line);
    if (event) reducer.journal(*event);
    return event.has_value();
  });
  std::ranges::stable_sort(view.aftermath,
                           [](const auto& a, const auto& b) { return a.second > b.second; });
  return view;
}

TrainingView read_training(const fs::path& folder) {
  RunView view;
  RunReducer reducer(view);
  std::string last_step;  // the latest step line, not yet taken
  const auto take = [&](const std::string& line) {
    if (const auto event = object_of(line)) reducer.metric(*event);
  };
  read_lines(folder / "metrics.jsonl", [&](std::string& line) {
    if (is_step(line)) {
      last_step.swap(line);
      return true;
    }
    if (!last_step.empty()) take(last_step);
    last_step.clear();
    take(line);
    return true;
  });
  if (!last_step.empty()) take(last_step);
  return std::move(view.training);
}

Result<RunView> read_run_view(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder / "events.jsonl", ignored))
    return fail(ErrorCode::not_found,
                fmt::format("{}: cannot be read; was this folder made by `sortie run`?",
                            (folder / "events.jsonl").string()));
  RunView view = read_journal(folder);
  view.training = read_training(folder);
  return view;
}

}  // namespace sortie::launcher
