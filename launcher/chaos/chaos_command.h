// `sortie chaos`: injects random faults into a run of the user, to test that the run survives them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sortie::launcher {

struct ChaosOptions {
  std::string run, log_dir;
  std::string every = "60s";          // duration between faults
  std::string faults = "kill";        // parse_faults
  std::string link_down = "10s";      // duration of a link fault
  std::optional<std::uint64_t> seed;  // empty: a new seed, which is printed
  std::int64_t count = 0;             // faults until it ends; 0 = until the run ends
  bool yes = false;                   // do not ask for confirmation
};

/// Prints each fault before it injects it. Ends after `count` faults, or when the run has ended or
/// is lost. Returns 0 in these cases, else the exit code of the error.
int run_chaos(const ChaosOptions& options);

}  // namespace sortie::launcher
