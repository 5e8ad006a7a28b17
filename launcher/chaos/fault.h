// Chooses the next fault: a pure function of a seed and of the running ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher {

enum class FaultKind {
  kill,        // SIGKILL to a rank: simulates a crash
  term,        // SIGTERM to a rank: simulates a host that is taken away
  stop,        // SIGSTOP to a rank: simulates a hang
  link,        // cuts the launcher's link to a rank's host for a limited time
  supervisor,  // SIGKILL to the run's supervisor on this machine
};
std::string_view fault_name(FaultKind kind);
/// Names of all faults.
std::vector<std::string> fault_names();
/// Parses a list such as "kill,stop"; drops duplicates. ErrorCode::usage names an unknown fault.
Result<std::vector<FaultKind>> parse_faults(std::string_view text);

/// A running rank.
struct Victim {
  std::uint32_t rank = 0;
  std::string host;
  std::uint32_t pid = 0;  // on its host
  std::string site = {};  // set for a run over several sites; each site numbers its ranks from 0
  /// Run ID on the hosts: SORTIE_RUN_ID in the environment of the rank.
  std::string run = {};
};

struct Fault {
  FaultKind kind = FaultKind::kill;
  std::optional<Victim> victim;  // empty for FaultKind::supervisor
};
/// "kill rank 3 on h2 (pid 4242)", "kill rank 0 of site oslo on h2 (pid 4242)"; "link to h2 cut".
std::string fault_text(const Fault& fault);

/// Deterministic source of faults: the same seed gives the same faults while the same ranks run.
/// next() returns nullopt if no rank runs and `kinds` lacks FaultKind::supervisor.
class FaultSource {
 public:
  FaultSource(std::uint64_t seed, std::vector<FaultKind> kinds);
  std::optional<Fault> next(const std::vector<Victim>& running);

 private:
  std::mt19937_64 random_;
  std::vector<FaultKind> kinds_;
};

/// Returns the command that sends the signal of `fault` to the rank, for execution on its host. It
/// sends the signal only if the environment of the process contains the run ID, and prints what it
/// did. It always exits with 0. `fault` must be a signal to a rank.
std::vector<std::string> fault_command(const Fault& fault);

}  // namespace sortie::launcher
