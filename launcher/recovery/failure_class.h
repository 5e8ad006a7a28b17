// The class of a failure: what [recovery] decides by.
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
  software,   // a rank died of a signal, a runner gave up, something did not end in time
  hardware,   // a host was lost; a device or host reported a fault that explains the failure
  hang,       // ranks that made no progress
  oom,        // out of memory
  preempted,  // the host is taken away, or asked its ranks to end: TERM, HUP, exit code 75
  user,       // Ctrl-C, `sortie stop`: never restarted
  setup,      // before any rank ran: hosts unreachable or not ready, errors of the config
  planned,    // no failure: the run itself ended its ranks, to go on with other hosts
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

/// By the first cause alone. What came before, and what a host says of its health, may change it:
/// decide.h.
FailureClass classify(const Cause& cause);

/// The host that this cause is evidence against, by itself; empty = none. Not those that may only
/// be the first to notice: exit codes, MPI_Abort, SIGABRT and the like, time-outs. Not those that
/// the program does to itself wherever it runs: SIGSEGV, SIGFPE, lack of memory.
std::string blamed_host(const Cause& cause);

/// One class for people: `sortie explain hardware`, docs/recovery.md.
struct FailureClassText {
  FailureClass failure;
  std::string_view meaning;  // one sentence, no period
  std::string_view advice;   // what Sortie does about it, and what a person can; the same form
};
std::span<const FailureClassText> failure_class_texts();

}  // namespace sortie::launcher
