// ExecRun: handling of messages from runners.
#include <fmt/core.h>

#include <utility>

#include "common/base/exit_code.h"
#include "common/base/printable.h"
#include "launcher/exec/exec_run.h"
#include "launcher/host/host_texts.h"

namespace sortie::launcher {

using Kind = Outcome::Kind;

void ExecRun::on_message(std::size_t index, wire::Message message) {
  if (is_done(index)) return;
  Active& active = *active_[index];
  const bool early = active.phase == Phase::queued &&  // its command has not been started
                     !std::holds_alternative<wire::RunnerError>(message) &&
                     !std::holds_alternative<wire::RankEvent>(message);
  if (early) {
    give_up(index, {ErrorCode::protocol, fmt::format("runner sent {} before its command began",
                                                     wire::message_name(message))});
  } else if (const auto* output = std::get_if<wire::Output>(&message)) {
    on_output(index, *output);
  } else if (const auto* credit = std::get_if<wire::InputCredit>(&message)) {
    const std::uint64_t sent = parts_.input ? kInputWindow - active.input_room : 0;
    if (credit->bytes > sent)
      return give_up(index, {ErrorCode::protocol, "runner gave credit for stdin it was not sent"});
    active.input_room += credit->bytes;
    if (credit->closed != 0) active.input_done = true;
    send_input(index);
    forget_input();
  } else if (const auto* exited = std::get_if<wire::RankExited>(&message)) {
    active.exited = *exited;
  } else if (std::holds_alternative<wire::Finished>(message)) {
    on_finished(index);
  } else if (auto* error = std::get_if<wire::RunnerError>(&message)) {
    if (runner_error_code(*error) == ErrorCode::spawn)
      active.spawn_error = one_line(std::move(error->message));  // RankExited follows
    else
      give_up(index, {runner_error_code(*error), std::move(error->message)});
  } else if (!std::holds_alternative<wire::RankStarted>(message) &&
             !std::holds_alternative<wire::RankEvent>(message)) {
    give_up(index, {ErrorCode::protocol,
                    fmt::format("runner sent an unexpected {}", wire::message_name(message))});
  }
}

void ExecRun::on_output(std::size_t index, const wire::Output& output) {
  Active& active = *active_[index];
  if (output.rank != 0 || active.exited)
    return give_up(index,
                   {ErrorCode::protocol, "runner sent output of a process that is not there"});
  for (ExecSink* sink : parts_.sinks)
    sink->output(index, outcomes_[index].host, output.stream, output.bytes);
  active.unacknowledged += output.bytes.size();
  if (active.unacknowledged > output_window_)
    return give_up(index, {ErrorCode::protocol, "runner sent more output than it may"});
  if (active.unacknowledged < output_window_ / 4) return;
  if (!congested()) return acknowledge(active);
  if (!std::exchange(active.owed, true)) owed_.push_back(index);
  tick_.cancel();
}

void ExecRun::acknowledge(Active& active) {
  active.session->send(wire::OutputCredit{std::exchange(active.unacknowledged, 0)});
}

void ExecRun::on_finished(std::size_t index) {
  Active& active = *active_[index];
  if (!active.exited)
    return give_up(index, {ErrorCode::protocol, "runner finished without the command's end"});
  const wire::RankExited& exited = *active.exited;
  Outcome outcome;
  outcome.status = status_of(exited);
  outcome.exit_code = outcome.status.shell_code();
  const std::string ended = outcome.status.to_string();
  if (!active.spawn_error.empty()) {
    outcome.kind = Kind::not_started;
    outcome.reason = active.spawn_error;
  } else if (exited.stopped && active.timed_out) {
    outcome.kind = Kind::timeout;
    outcome.exit_code = kExitTimedOut;
    outcome.reason = fmt::format("still ran after {:.3g} s: {}",
                                 static_cast<double>(job_.timeout.count()) / 1000, ended);
  } else if (exited.stopped && active.told_to_stop) {
    outcome.kind = Kind::stopped;
    outcome.exit_code = interrupted_.value_or(kExitFailed);
    outcome.reason = ended;
  } else if (exited.stopped) {
    outcome.kind = Kind::lost;
    outcome.exit_code = kExitLost;
    outcome.reason =
        "the runner ended the command by itself; see whether this machine slept or the network "
        "stalled (runner.heartbeat_timeout)";
  } else if (outcome.status.success()) {
    outcome.kind = Kind::ok;
  } else {
    outcome.kind = Kind::failed;
    outcome.reason = ended + std::string(oom_text(exited));
  }
  if (exited.leftovers_killed > 0 && !active.told_to_stop)
    cleaned_.push_back(outcomes_[index].host);
  if (!exited.left.empty())
    parts_.console.error(
        fmt::format("{}: left by the command: {}", outcomes_[index].host, printable(exited.left)));
  active.session->send(wire::Goodbye{});
  finish(index, std::move(outcome));
}

void ExecRun::on_lost(std::size_t index, Error error) {
  if (!is_done(index)) return give_up(index, std::move(error));
  if (active_[index]) active_[index]->timer.cancel();  // its runner has exited
}

void ExecRun::give_up(std::size_t index, Error error) {
  Active& active = *active_[index];
  Outcome outcome;
  const bool ran = active.phase == Phase::running;
  outcome.kind = ran ? Kind::lost : Kind::unreachable;
  outcome.exit_code = ran ? kExitLost : exit_code_for(error.code);
  outcome.reason = reason_of(outcome.kind, error);
  if (active.exited) outcome.status.kind = ProcessStatus::Kind::lost;
  active.session->close();
  finish(index, std::move(outcome));
}

}  // namespace sortie::launcher
