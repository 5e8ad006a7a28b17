// How a command ended on each host, and what that comes to. Pure.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/process_status.h"
#include "common/base/result.h"

namespace sortie::launcher {

struct Outcome {
  enum class Kind {
    waiting,      // not begun
    ok,           // exit code 0
    failed,       // another exit code, or a signal
    timeout,      // ended because --timeout had passed
    unreachable,  // never started: ssh or the runner
    not_started,  // never started: the program is not there, or may not be run
    lost,         // the host went away, or its runner broke the protocol
    stopped,      // ended because the user wanted it
    skipped,      // never begun, for the same reason
  };
  Kind kind = Kind::waiting;
  ProcessStatus status;   // of the command, where it ran to an end
  int exit_code = 0;      // that this host alone would give
  std::string reason;     // "exit code 3", "connect: Connection refused ..."; empty when ok
  double seconds = 0;     // from the start of the command to its end
  std::size_t order = 0;  // in which hosts were done, from 1
};

struct HostOutcome {
  std::string host;
  Outcome outcome;
};

/// "ok", "failed", "timeout" ... as in the table and in --json.
std::string_view outcome_name(Outcome::Kind kind);

/// Outcome::reason of a host that an error has ended: "connect: Connection refused"; one line. What
/// the outcome's name says already is not said twice.
std::string reason_of(Outcome::Kind kind, const Error& error);

/// 0 when all are ok; `interrupted` (130 ...) when there is one; else of the host that failed
/// first.
int exec_exit_code(std::span<const HostOutcome> hosts, std::optional<int> interrupted);

/// Who failed and why, hosts with the same reason on one line; empty when all are ok.
std::string failure_table(std::span<const HostOutcome> hosts);

/// "gpu[01-07,12] (8)".
std::string folded_with_count(const std::vector<std::string>& hosts);

}  // namespace sortie::launcher
