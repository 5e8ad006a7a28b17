// How a command ended on each host, and the summary for all hosts. Pure.
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
    waiting,      // not started yet
    ok,           // exit code 0
    failed,       // nonzero exit code, or a signal
    timeout,      // stopped because --timeout expired
    unreachable,  // not started: ssh or the runner failed
    not_started,  // not started: the program is missing or not executable
    lost,         // the connection was lost, or the runner violated the protocol
    stopped,      // stopped by the user
    skipped,      // not started, because the user had stopped the command
  };
  Kind kind = Kind::waiting;
  ProcessStatus status;   // of the command, if it ended
  int exit_code = 0;      // exit code for a run with only this host
  std::string reason;     // "exit code 3", "connect: Connection refused ..."; empty when ok
  double seconds = 0;     // from the start of the command to its end
  std::size_t order = 0;  // order in which hosts finished, from 1
};

struct HostOutcome {
  std::string host;
  Outcome outcome;
};

/// "ok", "failed", "timeout" ..., for the table and --json.
std::string_view outcome_name(Outcome::Kind kind);

/// Outcome::reason of a host that failed with `error`, on one line: "connect: Connection refused".
/// Does not repeat the name of the outcome.
std::string reason_of(Outcome::Kind kind, const Error& error);

/// 0 if all are ok; `interrupted` (130 ...) if set; otherwise the exit code of the host that failed
/// first.
int exec_exit_code(std::span<const HostOutcome> hosts, std::optional<int> interrupted);

/// Table of failed hosts and reasons, hosts with the same reason on one line; empty if all are ok.
std::string failure_table(std::span<const HostOutcome> hosts);

/// "gpu[01-07,12] (8)".
std::string folded_with_count(const std::vector<std::string>& hosts);

}  // namespace sortie::launcher
