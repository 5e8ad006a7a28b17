// ProcessStatus: how a process ended, as a value. Code that waits for a process converts the raw
// wait status at once and does not pass it on.
#pragma once

#include <string>

namespace sortie {

struct ProcessStatus {
  enum class Kind { not_started, running, exited, signaled, lost };
  Kind kind = Kind::not_started;
  int code = 0;  // exit code when exited, signal number when signaled
  bool core_dumped = false;

  /// From the status that waitpid filled in.
  static ProcessStatus from_wait_status(int wait_status);

  bool success() const { return kind == Kind::exited && code == 0; }
  /// The code that a shell would report: the exit code, or 128 + signal number; else 1.
  int shell_code() const;
  /// "exit code 3", "signal 9 (SIGKILL)", "signal 11 (SIGSEGV, core dumped)", "lost".
  std::string to_string() const;
  bool operator==(const ProcessStatus&) const = default;
};

/// "SIGKILL" for 9; "SIG64" style for numbers without a name.
std::string signal_name(int signal_number);

}  // namespace sortie
