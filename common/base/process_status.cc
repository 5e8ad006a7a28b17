#include "common/base/process_status.h"

#include <fmt/core.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>

namespace sortie {

ProcessStatus ProcessStatus::from_wait_status(int wait_status) {
  // WIFSIGNALED is the only test that tells a SIGSEGV death from `exit 11`.
  if (WIFSIGNALED(wait_status))
    return {Kind::signaled, WTERMSIG(wait_status), static_cast<bool>(WCOREDUMP(wait_status))};
  if (WIFEXITED(wait_status)) return {Kind::exited, WEXITSTATUS(wait_status), false};
  return {Kind::running, 0, false};
}

int ProcessStatus::shell_code() const {
  switch (kind) {
    case Kind::exited:
      return code;
    case Kind::signaled:
      return 128 + code;
    case Kind::not_started:
    case Kind::running:
    case Kind::lost:
      return 1;
  }
  return 1;
}

std::string ProcessStatus::to_string() const {
  switch (kind) {
    case Kind::not_started:
      return "not started";
    case Kind::running:
      return "running";
    case Kind::exited:
      return fmt::format("exit code {}", code);
    case Kind::signaled:
      return fmt::format("signal {} ({}{})", code, signal_name(code),
                         core_dumped ? ", core dumped" : "");
    case Kind::lost:
      return "lost";
  }
  return "lost";
}

std::string signal_name(int signal_number) {
  const char* name = sigabbrev_np(signal_number);
  return name ? fmt::format("SIG{}", name) : fmt::format("SIG{}", signal_number);
}

}  // namespace sortie
