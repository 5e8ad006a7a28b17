// `sortie attach`: the live output of a run in another terminal, and its exit code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sortie::launcher {

struct AttachRequest {
  std::string run, log_dir;
  bool from_start = false;
  std::optional<std::int64_t> since_ms = {};  // else from now on
};

/// Shows the run until it ends; returns its exit code. 130 after Ctrl-C, which leaves it running; 5
/// when its supervisor is gone without a result.
int attach(const AttachRequest& request);

}  // namespace sortie::launcher
