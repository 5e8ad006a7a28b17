// A short look through another program: its output, bounded in time and size. For the few checks
// that no system call answers.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/base/process_status.h"
#include "common/base/result.h"
#include "runner/process/process_defaults.h"

namespace sortie::runner::check {

struct ChildOutput {
  ProcessStatus status;
  std::string text;  // stdout and stderr, at most 64 KiB
};

/// Runs `path` with `argv` in a session of its own and waits for its end; it and what it started
/// are killed at `limit`. Blocks the thread: nothing else happens in a check. ErrorCode::timeout,
/// ErrorCode::spawn.
Result<ChildOutput> run_child(const std::string& path, const std::vector<std::string>& argv,
                              const std::vector<std::string>& extra_env,
                              std::chrono::milliseconds limit, const ProcessDefaults& defaults);

}  // namespace sortie::runner::check
