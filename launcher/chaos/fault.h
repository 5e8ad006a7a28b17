// Which fault comes next: a pure function of a seed and of what runs.
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
  kill,        // SIGKILL to a rank: a process that dies
  term,        // SIGTERM to a rank: a host that is taken away
  stop,        // SIGSTOP to a rank: one that stands still
  link,        // the launcher's link to a rank's host is cut for a time
  supervisor,  // SIGKILL to the run's supervisor on this machine
};
std::string_view fault_name(FaultKind kind);
/// "kill,stop", each once. ErrorCode::usage names what is none.
Result<std::vector<FaultKind>> parse_faults(std::string_view text);

/// A rank that runs.
struct Victim {
  std::uint32_t rank = 0;
  std::string host;
  std::uint32_t pid = 0;  // on its host
  std::string site = {};  // of a run over several; ranks count from 0 on each
  /// What its hosts call its run: SORTIE_RUN_ID of the rank.
  std::string run = {};
};

struct Fault {
  FaultKind kind = FaultKind::kill;
  std::optional<Victim> victim;  // none: the supervisor
};
/// "kill rank 3 on h2 (pid 4242)", "kill rank 0 of site oslo on h2 (pid 4242)"; "link to h2 cut".
std::string fault_text(const Fault& fault);

/// The same faults for the same seed, while the same ranks run. A fault of a rank needs one:
/// nothing where none runs and `kinds` has no other.
class FaultSource {
 public:
  FaultSource(std::uint64_t seed, std::vector<FaultKind> kinds);
  std::optional<Fault> next(const std::vector<Victim>& running);

 private:
  std::mt19937_64 random_;
  std::vector<FaultKind> kinds_;
};

/// The command that carries out a signal to a rank on its host: it sends the signal only to a
/// process that has the run's id in its environment, and says what it did. Always exits with 0.
std::vector<std::string> fault_command(const Fault& fault);

}  // namespace sortie::launcher
