// `sortie attach`: shows the live output of a run in another terminal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sortie::launcher {

struct AttachRequest {
  std::string run, log_dir;
  bool from_start = false;
  std::optional<std::int64_t> since_ms = {};  // empty: only new output
};

/// Shows the run until it ends; returns its exit code. Returns 130 after Ctrl-C, which leaves the
/// run running, and 5 if its supervisor is gone without a result.
int attach(const AttachRequest& request);

}  // namespace sortie::launcher
