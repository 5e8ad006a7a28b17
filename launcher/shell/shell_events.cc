// ShellHosts: handles messages of runners.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "common/base/exit_code.h"
#include "launcher/host/host_texts.h"
#include "launcher/shell/shell_hosts.h"

namespace sortie::launcher {

using EndKind = Outcome::Kind;

namespace {

std::size_t reader_of(wire::Stream stream) {
  return stream == wire::Stream::out ? 0 : 1;
}

}  // namespace

void ShellHosts::on_message(std::size_t index, wire::Message message) {
  Host& host = *hosts_[index];
  if (std::holds_alternative<wire::Finished>(message)) return on_finished(index);
  if (host.phase == Phase::gone) return;
  if (const auto* output = std::get_if<wire::Output>(&message)) {
    on_output(index, *output);
  } else if (const auto* credit = std::get_if<wire::InputCredit>(&message)) {
    if (credit->bytes > kInputWindow - host.room)
      return give_up(index, {ErrorCode::protocol, "runner gave credit for stdin it was not sent"});
    host.room += credit->bytes;
    write(host, "");
  } else if (const auto* exited = std::get_if<wire::RankExited>(&message)) {
    host.exited = *exited;
  } else if (auto* error = std::get_if<wire::RunnerError>(&message)) {
    if (runner_error_code(*error) == ErrorCode::spawn)
      host.spawn_error = one_line(std::move(error->message));  // RankExited follows
    else
      give_up(index, {runner_error_code(*error), std::move(error->message)});
  } else if (!std::holds_alternative<wire::RankStarted>(message) &&
             !std::holds_alternative<wire::RankEvent>(message)) {
    give_up(index, {ErrorCode::protocol,
                    fmt::format("runner sent an unexpected {}", wire::message_name(message))});
  }
}

void ShellHosts::on_output(std::size_t index, const wire::Output& output) {
  Host& host = *hosts_[index];
  if (output.rank != 0 || host.exited)
    return give_up(index,
                   {ErrorCode::protocol, "runner sent output of a process that is not there"});
  host.unacknowledged += output.bytes.size();
  if (host.unacknowledged > kOutputWindow)
    return give_up(index, {ErrorCode::protocol, "runner sent more output than it may"});
  host.readers[reader_of(output.stream)].feed(
      output.bytes, [this, index, &output](const MarkReader::Piece& piece) {
        on_piece(index, output.stream, piece);
      });
  if (host.phase != Phase::gone) give_credit_to(host);
}

/// Returns credit to the host: output accepted by the sink is in memory, in a file, or queued for
/// the terminal.
void ShellHosts::give_credit_to(Host& host) {
  if (host.unacknowledged < kOutputWindow / 4) return;
  if (parts_.congested && parts_.congested()) return;
  host.session->send(wire::OutputCredit{std::exchange(host.unacknowledged, 0)});
}

void ShellHosts::give_credit() {
  for (const auto& host : hosts_)
    if (host->phase == Phase::ready && !host->exited) give_credit_to(*host);
}

void ShellHosts::on_piece(std::size_t index, wire::Stream stream, const MarkReader::Piece& piece) {
  using What = MarkReader::Piece::Kind;
  Host& host = *hosts_[index];
  const bool out = stream == wire::Stream::out;
  if (piece.kind == What::stray) {
    // An interactive shell answers an interrupt with an empty line.
    if (host.opened && piece.bytes.find_first_not_of(" \r\n") != piece.bytes.npos)
      parts_.on_stray(index, host.name, piece.bytes);
  } else if (piece.kind == What::begun && out) {
    host.begun = true;
    if (!host.wish.empty()) write(host, std::exchange(host.wish, {}));
  } else if (piece.kind == What::text) {
    // So does an interactive shell that runs a line.
    const bool is_answer = interrupts_ > 0 && !out && piece.bytes == "\n";
    if (is_answer) return;
    if (out)
      show(index, stream, piece.bytes);
    else
      show(index, stream, host.terminal_errors.feed(piece.bytes));
  } else if (piece.kind == What::ended) {
    if (out)
      host.status = piece.status;
    else
      show(index, stream, host.terminal_errors.finish());
    host.done[reader_of(stream)] = true;
    if (!host.done[0] || !host.done[1] || !host.busy) return;
    Outcome outcome;
    outcome.status = {ProcessStatus::Kind::exited, host.status, false};
    outcome.exit_code = host.status;
    outcome.kind = host.status == 0  ? EndKind::ok
                   : interrupts_ > 0 ? EndKind::stopped
                                     : EndKind::failed;
    if (host.status != 0) outcome.reason = fmt::format("exit code {}", host.status);
    end_line(index, std::move(outcome));
  }
}

/// Shows output of the running line.
void ShellHosts::show(std::size_t index, wire::Stream stream, std::string_view bytes) {
  const Host& host = *hosts_[index];
  if (sink_ != nullptr && host.busy && !bytes.empty())
    sink_->output(index, host.name, stream, bytes);
}

void ShellHosts::end_line(std::size_t index, Outcome outcome) {
  Host& host = *hosts_[index];
  host.busy = host.begun = false;
  outcome.order = ++order_;
  if (sink_ != nullptr) sink_->finished(index, host.name, outcome);
  const auto at = std::ranges::find(which_, index);
  outcomes_[static_cast<std::size_t>(at - which_.begin())].outcome = std::move(outcome);
  --running_;
  changed_.cancel();
}

/// Handles the end of the shell: `exit` within a line, `set -e`, a signal, out of memory.
void ShellHosts::on_finished(std::size_t index) {
  Host& host = *hosts_[index];
  host.session->say_goodbye();
  if (host.phase == Phase::gone) return;
  if (!host.exited)
    return give_up(index, {ErrorCode::protocol, "runner finished without the shell's end"});
  Outcome outcome;
  outcome.status = status_of(*host.exited);
  outcome.exit_code = outcome.status.shell_code();
  outcome.kind = EndKind::stopped;
  outcome.reason = fmt::format("its shell has ended: {}", outcome.status.to_string());
  if (!host.spawn_error.empty()) {
    outcome.kind = EndKind::not_started;
    outcome.reason = host.spawn_error;
  } else if (host.exited->stopped && !leaving_) {
    outcome.kind = EndKind::lost;
    outcome.exit_code = kExitLost;
    outcome.reason =
        "the runner ended its shell by itself; see whether this machine slept or the network "
        "stalled (runner.heartbeat_timeout)";
  } else {
    outcome.reason += oom_text(*host.exited);
  }
  leave_out(index, std::move(outcome));
}

void ShellHosts::give_up(std::size_t index, Error error) {
  Host& host = *hosts_[index];
  if (host.phase == Phase::gone) return;
  Outcome outcome;
  const bool was_ready = host.phase == Phase::ready;
  outcome.kind = was_ready ? EndKind::lost : EndKind::unreachable;
  outcome.exit_code = was_ready ? kExitLost : exit_code_for(error.code);
  outcome.reason = reason_of(outcome.kind, error);
  host.session->close();
  leave_out(index, std::move(outcome));
}

void ShellHosts::leave_out(std::size_t index, Outcome outcome) {
  Host& host = *hosts_[index];
  host.phase = Phase::gone;
  host.end = outcome;
  const bool in_line = host.busy;
  if (in_line) {
    // Pass on output of the line that was held back as a possible start of a mark.
    for (const wire::Stream stream : {wire::Stream::out, wire::Stream::err})
      host.readers[reader_of(stream)].finish([&](const MarkReader::Piece& piece) {
        if (piece.kind == MarkReader::Piece::Kind::text) on_piece(index, stream, piece);
      });
    show(index, wire::Stream::err, host.terminal_errors.finish());
    end_line(index, outcome);
  }
  if (!leaving_) parts_.on_gone(host.name, outcome, in_line);
  changed_.cancel();
}

}  // namespace sortie::launcher
