// ExecRun: sends stdin to the hosts.
#include <algorithm>

#include "launcher/exec/exec_run.h"

namespace sortie::launcher {
namespace {

constexpr std::size_t kInputPieceBytes = 32u << 10;
/// Read-ahead of stdin relative to the fastest host, and to the slowest running one.
constexpr std::uint64_t kAheadOfFastest = 1u << 20;
constexpr std::uint64_t kAheadOfSlowest = 1u << 30;

}  // namespace

void ExecRun::start_input() {
  if (!parts_.input) return;
  parts_.input->start({[this] { send_input_to_all(); },
                       [this](Error error) { on_input_error(std::move(error)); },
                       [this] { return wants_input(); }});
}

void ExecRun::send_input_to_all() {
  for (std::size_t index = 0; index < next_ && index < active_.size(); ++index)
    if (active_[index]) send_input(index);
}

void ExecRun::send_input(std::size_t index) {
  if (!parts_.input || input_error_) return;
  Active& active = *active_[index];
  InputSource& input = *parts_.input;
  while (active.phase == Phase::running && !active.input_done) {
    const std::uint64_t left = input.size() - active.input_offset;
    wire::Input piece;
    if (left > 0) {
      const std::uint64_t size =
          std::min<std::uint64_t>({left, active.input_room, kInputPieceBytes});
      if (size == 0) return;
      auto bytes = input.read(active.input_offset, static_cast<std::size_t>(size));
      if (!bytes) return on_input_error(std::move(bytes).error());
      piece.bytes = std::move(*bytes);
      active.input_offset += size;
      active.input_room -= size;
    } else if (!input.ended()) {
      break;
    }
    if (input.ended() && active.input_offset == input.size()) {
      piece.eof = 1;
      active.input_done = true;
    }
    active.session->send(piece);
  }
  input.resume();
}

/// Whether to read more of stdin. A host that has not started does not delay the others: its data
/// is kept.
bool ExecRun::wants_input() const {
  std::uint64_t fastest = 0, slowest = UINT64_MAX;
  for (const auto& active : active_) {
    if (!active || active->phase != Phase::running || active->input_done) continue;
    fastest = std::max(fastest, active->input_offset);
    slowest = std::min(slowest, active->input_offset);
  }
  if (slowest == UINT64_MAX) return false;
  return parts_.input->size() < fastest + kAheadOfFastest &&
         parts_.input->size() < slowest + kAheadOfSlowest;
}

/// Frees input that every host has received.
void ExecRun::forget_input() {
  constexpr std::size_t kEvery = 256;
  if (!parts_.input || next_ < outcomes_.size() || ++credits_ % kEvery != 0) return;
  std::uint64_t needed = parts_.input->size();
  for (const auto& active : active_)
    if (active && active->phase != Phase::ended && !active->input_done)
      needed = std::min(needed, active->input_offset);
  parts_.input->discard_before(needed);
}

/// No EOF is sent, because a command must not mistake partial input for all; the commands are
/// stopped.
void ExecRun::on_input_error(Error error) {
  if (input_error_) return;
  input_error_ = std::move(error);
  parts_.console.error(input_error_->message + "; ending all commands");
  stop_all();
}

}  // namespace sortie::launcher
