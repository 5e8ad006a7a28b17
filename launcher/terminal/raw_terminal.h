// RawTerminal: the terminal of this process as a host's session needs it: every key goes there, and
// nothing is changed or echoed here. Given back on every way out: the object's end, a crash, and
// the signals that its owner waits for.
#pragma once

#include <optional>

#include "common/base/result.h"
#include "launcher/host/terminal_channel.h"

namespace sortie::launcher {

class RawTerminal {
 public:
  /// Of descriptor 0. Raw from set() on.
  RawTerminal();
  ~RawTerminal();
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

  Result<> set();
  /// As it was before the first set().
  void restore();
  /// Stops this process with the terminal restored; returns when it is continued, raw again.
  Result<> suspend();

 private:
  bool raw_ = false;
};

/// Of the terminal at descriptor 0, else 1; nothing where there is none.
std::optional<WindowSize> window_size();

}  // namespace sortie::launcher
