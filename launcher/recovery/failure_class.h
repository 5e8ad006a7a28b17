// The classes of failures. The rules of [recovery] depend on them.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "launcher/supervise/cause.h"

namespace sortie::launcher {

enum class FailureClass {
  app,        // a rank's exit code, MPI_Abort
  software,   // a rank was killed by a signal, a runner gave up, or something did not end in time
  hardware,   // a host was lost; a device or host reported a fault that explains the failure
  hang,       // ranks that made no progress
  oom,        // out of memory
  preempted,  // preemption: a rank received SIGTERM or SIGHUP from outside, or exited with 75
  user,       // Ctrl-C, `sortie stop`: never restarted
  setup,      // before any rank ran: hosts unreachable or not ready, errors of the config
  planned,    // no failure: the run itself stopped its ranks, to continue on other hosts
};

inline constexpr std::array<std::string_view, 9> kFailureClassNames = {
    "app", "software", "hardware", "hang", "oom", "preempted", "user", "setup", "planned"};

constexpr std::string_view failure_class_name(FailureClass failure) {
  return kFailureClassNames[static_cast<std::size_t>(failure)];
}
constexpr std::optional<FailureClass> failure_class_of(std::string_view name) {
  for (std::size_t i = 0; i < kFailureClassNames.size(); ++i)
    if (kFailureClassNames[i] == name) return static_cast<FailureClass>(i);
  return std::nullopt;
}

/// Returns the class of a first cause, from the cause alone. Earlier attempts (class_of() in
/// decide.h) and health reports of hosts may change the class.
FailureClass classify(const Cause& cause);

/// Returns the host that this cause alone is evidence against. Empty if there is none: for causes
/// that the host may only be the first to notice (exit codes, MPI_Abort, SIGABRT and the like,
/// timeouts), and for causes that are the program's fault on any host (SIGSEGV, SIGFPE, out of
/// memory).
std::string blamed_host(const Cause& cause);

/// Description of one class for users: `sortie explain hardware`, docs/recovery.md.
struct FailureClassText {
  FailureClass failure;
  std::string_view meaning;  // one sentence, no period
  std::string_view advice;   // what Sortie does and what the user can do; also without a period
};
std::span<const FailureClassText> failure_class_texts();

}  // namespace sortie::launcher
