// `sortie chaos`: faults at random in a run of one's own, to see that it survives them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sortie::launcher {

struct ChaosOptions {
  std::string run, log_dir;
  std::string every = "60s";          // duration between faults
  std::string faults = "kill";        // parse_faults
  std::string link_down = "10s";      // duration of a fault of a link
  std::optional<std::uint64_t> seed;  // none = a new one, which is printed
  std::int64_t count = 0;             // faults, and then the end; 0 = until the run ends
  bool yes = false;                   // do not ask
};

/// Says each fault before it makes it. Ends when the run has ended, when its supervisor is gone, or
/// after `count` faults; returns the exit code: 0 for these.
int run_chaos(const ChaosOptions& options);

}  // namespace sortie::launcher
