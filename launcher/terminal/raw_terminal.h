// RawTerminal: puts the terminal of this process into raw mode for a session on a host: every key
// is sent there, and nothing is changed or echoed here. The terminal is restored on every way out:
// by the destructor, on a crash, and by the owner on signals.
#pragma once

#include <optional>

#include "common/base/result.h"
#include "launcher/host/terminal_channel.h"

namespace sortie::launcher {

class RawTerminal {
 public:
  /// For the terminal at descriptor 0. It becomes raw with set().
  RawTerminal();
  ~RawTerminal();
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

  /// Puts the terminal into raw mode. No-op if it is raw.
  Result<> set();
  /// Restores the modes from before set().
  void restore();
  /// Restores the terminal and stops this process. Returns after it was continued, with the
  /// terminal raw again.
  Result<> suspend();

 private:
  bool raw_ = false;
};

/// Returns the size of the terminal at descriptor 0, else 1; nullopt without a terminal.
std::optional<WindowSize> window_size();

}  // namespace sortie::launcher
