// Attempt: handles the messages of runners: output, ends of ranks, MPI, lost hosts.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/boot_clock.h"
#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/training/event.h"
#include "common/wire/left_behind.h"
#include "launcher/host/host_texts.h"
#include "launcher/recovery/attempt_events.h"
#include "launcher/supervise/attempt.h"
#include "launcher/supervise/rank_event.h"

namespace sortie::launcher {
namespace {

constexpr std::size_t kKeptLines = 20;
constexpr std::size_t kKeptLineBytes = 500;
constexpr int kMaxHostErrors = 256;
/// Time for the other ranks to end, after one that left without MPI_Finalize; and for a host that
/// was away to report the ends of its ranks.
constexpr std::chrono::seconds kTimeForOthers{5}, kTimeForReports{1};

/// Other events of this type report completed rounds.
bool is_outer_question(const nlohmann::json& event) {
  return event["type"] == "outer" && event.contains("do");
}

}  // namespace

void Attempt::on_message(Host& host, wire::Message message) {
  if (auto* output = std::get_if<wire::Output>(&message)) {
    on_output(host, std::move(*output));
  } else if (const auto* event = std::get_if<wire::RankEvent>(&message)) {
    on_event(host, *event);
  } else if (const auto* started = std::get_if<wire::RankStarted>(&message)) {
    if (!owns(host, started->rank) || ranks_[started->rank].pid == started->pid) return;
    if (ranks_[started->rank].pid != 0)
      return give_up(host, fmt::format("runner started rank {} twice", started->rank));
    ranks_[started->rank].pid = started->pid;
    watch_.rank_started(started->rank);
    nlohmann::ordered_json details = {
        {"rank", started->rank}, {"host", host.plan->name}, {"pid", started->pid}};
    if (!ranks_[started->rank].cpus.empty()) details["cpus"] = ranks_[started->rank].cpus;
    parts_.folder.event(JournalEvent::rank_started, details);
    note_started();
  } else if (const auto* exited = std::get_if<wire::RankExited>(&message)) {
    if (owns(host, exited->rank) && !ranks_[exited->rank].status) on_rank_exited(host, *exited);
  } else if (std::holds_alternative<wire::Finished>(message)) {
    on_finished(host);
  } else if (const auto* error = std::get_if<wire::RunnerError>(&message)) {
    if (++host.errors > kMaxHostErrors) return give_up(host, "runner sent too many errors");
    on_runner_error(host, *error);
  } else if (auto* fence = std::get_if<wire::PmixFence>(&message)) {
    forward(relay_.on_fence(host.index, std::move(*fence)));
  } else if (const auto* request = std::get_if<wire::PmixModexRequest>(&message)) {
    forward(relay_.on_modex_request(host.index, *request));
  } else if (auto* reply = std::get_if<wire::PmixModexReply>(&message)) {
    forward(relay_.on_modex_reply(host.index, std::move(*reply)));
  } else if (auto* question = std::get_if<wire::PmixNames>(&message)) {
    if (owns(host, question->rank)) forward(names_.on_question(host.index, std::move(*question)));
  } else if (auto* dump = std::get_if<wire::StackDump>(&message)) {
    if (owns(host, dump->rank)) watch_.take(std::move(*dump));
  } else if (const auto* notice = std::get_if<wire::PmixNotice>(&message)) {
    if (owns(host, notice->rank)) on_notice(host, *notice);
  } else if (const auto* health = std::get_if<wire::HealthEvent>(&message)) {
    on_health(host, *health);
  } else if (parts_.on_forward && wire::is_of_stream(message)) {
    if (host.state == HostState::running) parts_.on_forward(host.plan->name, message);
  } else if (const auto* abort = std::get_if<wire::PmixAbort>(&message)) {
    if (!owns(host, abort->rank)) return;
    const int code = abort->status & 0xff;
    Cause cause = cause_of_rank(abort->rank, Cause::What::mpi_abort, abort->status);
    cause.exit_code = code == 0 ? kExitFailed : code;
    blame(std::move(cause));
  } else {
    give_up(host, fmt::format("runner sent an unexpected {}", wire::message_name(message)));
  }
}

bool Attempt::owns(const Host& host, std::uint32_t rank) const {
  return rank < ranks_.size() && ranks_[rank].host == host.index;
}

/// Treats a runner that breaks the protocol as lost.
void Attempt::give_up(Host& host, std::string why) {
  host.session->close();
  on_lost(host, {ErrorCode::protocol, std::move(why)});
}

void Attempt::on_finished(Host& host) {
  if (host.state != HostState::running) return;
  for (const RankPlan& rank : host.plan->ranks)
    if (!ranks_[rank.rank].status)
      return give_up(host, fmt::format("runner finished without the end of rank {}", rank.rank));
  host.waits_for_goodbye = hold_.count() > 0 && !stopping_;
  end_of(host, HostState::finished);
}

void Attempt::on_output(Host& host, wire::Output output) {
  if (!owns(host, output.rank) || superseded()) return;
  parts_.console.output(output.rank, host.plan->name, output.stream, output.bytes);
  if (output.stream == wire::Stream::err) {
    Rank& rank = ranks_[output.rank];
    std::string_view left = output.bytes;
    for (auto end = left.find('\n'); !left.empty(); end = left.find('\n')) {
      const std::size_t room = kKeptLineBytes - std::min(kKeptLineBytes, rank.partial.size());
      rank.partial += left.substr(0, std::min(end, room));
      if (end == left.npos) break;
      rank.last_lines.push_back(std::move(rank.partial));
      rank.partial.clear();
      if (rank.last_lines.size() > kKeptLines) rank.last_lines.pop_front();
      left.remove_prefix(end + 1);
    }
  }
  // Credit is returned after the write, and only for this connection.
  parts_.folder.log(output.rank, output.stream, std::move(output.bytes),
                    std::uint64_t{host.index} << 32 | host.link);
}

void Attempt::on_written(std::uint64_t owner, std::uint64_t bytes, std::uint64_t pieces) {
  // Credit is returned in batches: one small frame per 64 KiB instead of one per line.
  constexpr std::uint64_t kCreditPiece = 64u << 10;
  constexpr std::uint64_t kCreditPieces = 256;  // a runner that holds output keeps few pieces
  Host& host = hosts_[owner >> 32];
  if (host.link != static_cast<std::uint32_t>(owner)) return;
  host.unacknowledged += bytes;
  host.unacknowledged_pieces += pieces;
  const std::uint64_t piece =
      std::min<std::uint64_t>(kCreditPiece, output_window(hosts_.size()) / 4);
  if (host.unacknowledged < piece && host.unacknowledged_pieces < kCreditPieces) return;
  host.session->send(wire::OutputCredit{host.unacknowledged});
  host.unacknowledged = 0;
  host.unacknowledged_pieces = 0;
}

void Attempt::on_event(const Host& host, const wire::RankEvent& event) {
  if (!owns(host, event.rank)) return;
  auto json = check_rank_event(event.json);
  if (!json) return refuse_event(host, event.rank, json.error());
  nlohmann::json& known = *json;
  if (is_outer_question(known)) {
    if (parts_.on_outer) return parts_.on_outer(event.rank, known);
    return refuse_event(host, event.rank,
                        {ErrorCode::unsupported,
                         "a question about rounds, and the hosts of the job have no site; give "
                         "them site=NAME"});
  }
  if (RankStore::is_question(known))
    return store_.take(event.rank, known, [this](std::uint32_t rank, std::string line) {
      answer(rank, std::move(line));
    });
  if (known["type"] == training::ProfileEvent::kType) {
    known["rank"] = event.rank;
    known["host"] = host.plan->name;
    parts_.folder.profile(event.rank, known);
    known.erase("events");
  }
  if (const auto said = training::read_event(known)) note_training(*said);
  parts_.console.event(known);
  parts_.folder.metric(std::move(known));
}

void Attempt::answer(std::uint32_t rank, std::string json) {
  if (rank >= ranks_.size()) return;
  Host& host = hosts_[ranks_[rank].host];
  if (host.state == HostState::running && !host.way_back)
    host.session->send(wire::RankAnswer{rank, std::move(json)});
}

bool Attempt::send_forward(const std::string& host, const wire::Message& message) {
  const auto found =
      std::ranges::find(hosts_, host, [](const Host& one) { return one.plan->name; });
  if (found == hosts_.end() || found->state != HostState::running || found->way_back) return false;
  found->session->send(message);
  return true;
}

/// Records the training events that decisions and the journal need.
void Attempt::note_training(const training::Event& event) {
  const auto number = [](std::int64_t step) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, step));
  };
  if (const auto* saved = std::get_if<training::CheckpointEvent>(&event)) {
    note_committed(number(saved->step));
  } else if (const auto* kept = std::get_if<training::MemoryCheckpointEvent>(&event)) {
    note_committed(number(kept->step));  // the next attempt can resume from memory, too
  } else if (const auto* step = std::get_if<training::StepEvent>(&event)) {
    reached_step_ = number(step->step);
  } else if (const auto* back = std::get_if<training::RollbackEvent>(&event)) {
    reached_step_ = number(back->to);
  } else if (const auto* start = std::get_if<training::StartEvent>(&event)) {
    const bool again = begun_at_step_.has_value();
    begun_at_step_ = reached_step_ = number(start->step);
    if (again) return;  // a program may start more than one training
    AttemptResumed resumed{plan_.attempt, "disk", *begun_at_step_, start->resumed_from, {}};
    if (resumed.path.empty()) resumed.from = "start";
    if (resumed.path == training::kFromMemory) {
      resumed.from = "memory";
      resumed.path.clear();
    }
    if (parts_.reached_before)
      resumed.lost_steps = *parts_.reached_before - std::min(*parts_.reached_before, resumed.step);
    parts_.folder.event(JournalEvent::resumed, event_fields(resumed));
  }
}

void Attempt::on_heartbeat(const Host& host, const wire::Heartbeat& beat) {
  watch_.heard(host.index, beat);
  if (host.index == 0 && beat.committed_step > 0) note_committed(beat.committed_step - 1);
}

void Attempt::note_committed(std::uint64_t step) {
  const bool newer = !committed_step_ || step > *committed_step_;
  if (newer) committed_step_ = step;
  if (newer && !planned_.empty()) end_as_planned();
}

/// Reports a refused event once per rank, because a program with another format sends one at every
/// step, and only for the first 20 ranks.
void Attempt::refuse_event(const Host& host, std::uint32_t rank, const Error& why) {
  constexpr std::size_t kMostNoted = 20;
  if (std::exchange(ranks_[rank].event_refused, true) || ++refusals_ > kMostNoted) return;
  parts_.folder.event(JournalEvent::event_refused,
                      {{"rank", rank}, {"host", host.plan->name}, {"why", why.message}});
  if (refusals_ == 1)
    parts_.console.message(
        fmt::format("rank {} on {}: an event for SORTIE_SOCKET is left out, and others like it: {}",
                    rank, host.plan->name, why.message));
}

/// A process that can not be killed is always reported. Other errors only matter while they may be
/// the cause.
void Attempt::on_runner_error(const Host& host, const wire::RunnerError& error) {
  if (error.code == wire::kLeftBehind) return note_left(host, error.message);
  const bool of_rank = error.rank >= 0 && owns(host, static_cast<std::uint32_t>(error.rank));
  Cause cause;
  const bool timed_out = error.code == error_code_name(ErrorCode::timeout);
  const ErrorCode code = timed_out ? ErrorCode::timeout : runner_error_code(error);
  cause.what = cause_of_error(code);
  cause.host = host.plan->name;
  cause.exit_code = code == ErrorCode::runner ? kExitLost : exit_code_for(code);
  if (of_rank) cause.rank = static_cast<std::uint32_t>(error.rank);
  cause.message = of_rank
                      ? fmt::format("{}: rank {}: {}", host.plan->name, error.rank, error.message)
                      : fmt::format("{}: {}", host.plan->name, error.message);
  cause.at_ms = boot_ms();
  if (cause.what == Cause::What::timeout) {
    parts_.folder.event(JournalEvent::unconfirmed,
                        {{"host", host.plan->name}, {"why", error.message}});
    if (failing()) parts_.console.error(cause.message);
  }
  blame(std::move(cause));
}

void Attempt::on_rank_exited(Host& host, const wire::RankExited& exited) {
  const ProcessStatus status = status_of(exited);
  ranks_[exited.rank].status = status;
  watch_.rank_ended(exited.rank);
  parts_.console.end_of_rank(exited.rank);
  const std::int64_t now = boot_ms();
  const std::int64_t died_ms = host.session->clock().ours(exited.time_boot_ms, now);
  HeldEvent event{exited.rank, exited.stopped != 0 || !status.success(), {}};
  event.fields = {{"rank", exited.rank},
                  {"host", host.plan->name},
                  {"pid", ranks_[exited.rank].pid},
                  {"status", status.to_string()},
                  {"stopped", exited.stopped != 0},
                  {"oom_killed", exited.oom_killed != 0},
                  {"leftovers_killed", exited.leftovers_killed},
                  {"host_time_unix_ms", exited.time_unix_ms},
                  {"died_at", static_cast<double>(unix_time_ms() - (now - died_ms)) / 1000}};
  const bool stopped_by_itself = exited.stopped && !stopping_;
  if (stopped_by_itself) {  // the runner has lost this launcher, or was told to exit
    Cause cause = cause_of_rank(exited.rank, Cause::What::lost, 0);
    cause.rank.reset();
    cause.pid = 0;
    cause.last_lines.clear();
    cause.message = fmt::format(
        "{}: {}: the runner stopped its ranks by itself; see whether this machine slept or the "
        "network stalled (runner.heartbeat_timeout)",
        host.plan->name, error_code_name(ErrorCode::lost));
    cause.exit_code = kExitLost;
    blame(std::move(cause));
  } else if (!exited.stopped && !status.success()) {
    const auto what = status.kind == ProcessStatus::Kind::exited    ? Cause::What::exit
                      : exited.oom_killed && exited.code == SIGKILL ? Cause::What::oom
                                                                    : Cause::What::signal;
    Cause cause = cause_of_rank(exited.rank, what, status.code);
    cause.core_dumped = status.core_dumped;
    cause.oom = exited.oom_killed;
    cause.memory_limit = exited.memory_limit_bytes;
    cause.at_ms = died_ms;
    cause.exit_code = status.shell_code();
    blame(std::move(cause));
  } else if (exited.not_finalized) {
    note_not_finalized(cause_of_rank(exited.rank, Cause::What::no_finalize, 0), died_ms);
  }
  note_exited(std::move(event));
  if (!exited.left.empty())
    note_left(host, fmt::format("left by rank {}: {}", exited.rank, printable(exited.left)));
}

/// Reports what stays on a host after its ranks.
void Attempt::note_left(const Host& host, const std::string& what) {
  parts_.folder.event(JournalEvent::unconfirmed, {{"host", host.plan->name}, {"why", what}});
  parts_.console.error(fmt::format("{}: {}", host.plan->name, what));
}

/// Like mpirun, Sortie ends the job of a rank that leaves without MPI_Finalize. The other ranks
/// have some time, since a program whose ranks all skip it ends by itself.
void Attempt::note_not_finalized(Cause cause, std::int64_t died_ms) {
  if (not_finalized_ || stopping_ || failing() || !has_running_ranks()) return;
  cause.at_ms = died_ms;
  cause.exit_code = kExitFailed;
  parts_.console.message(fmt::format(
      "rank {} on {} exited with code 0 without MPI_Finalize; the other ranks have {} s",
      cause.rank.value_or(0), cause.host, kTimeForOthers.count()));
  not_finalized_ = std::move(cause);
  await_others(kTimeForOthers);
}

void Attempt::await_others(std::chrono::seconds time) {
  finalize_timer_.set(time, [this] {
    if (stopping_ || failing() || over_ || superseded() || !has_running_ranks()) return;
    // Ranks of a host whose connection is broken, or was until now, may have ended.
    const auto now = std::chrono::steady_clock::now();
    for (const Host& host : hosts_)
      if (host.way_back || now - host.restored_at < kTimeForReports)
        return await_others(kTimeForReports);
    blame(*not_finalized_);
  });
}

bool Attempt::has_running_ranks() const {
  return std::ranges::any_of(ranks_, [](const Rank& rank) { return !rank.status; });
}

/// Reports each text once, because all ranks may send the same.
void Attempt::on_notice(const Host& host, const wire::PmixNotice& notice) {
  constexpr std::size_t kMostNotices = 20;
  const std::string& text = notice.text;
  if (notices_.size() >= kMostNotices || !notices_.insert(text).second) return;
  parts_.folder.event(JournalEvent::notice,
                      {{"host", host.plan->name}, {"rank", notice.rank}, {"text", text}});
  parts_.console.error(fmt::format("rank {} on {}: {}", notice.rank, host.plan->name, text));
}

void Attempt::forward(std::vector<PmixRelay::Outgoing> messages) {
  for (const PmixRelay::Outgoing& outgoing : messages) {
    const auto frame = std::make_shared<const std::string>(wire::encode(outgoing.message));
    for (const std::size_t host : outgoing.hosts) hosts_[host].session->send(frame);
  }
}

}  // namespace sortie::launcher
