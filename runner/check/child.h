// Runs a short program and returns its output, bounded in time and size, for the few checks that no
// system call answers.
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

/// Runs `path` with `argv` in a separate session and waits for its end. At `limit`, kills it and
/// everything that it started. Blocks the thread: nothing else happens in a check.
/// ErrorCode::timeout, ErrorCode::spawn.
Result<ChildOutput> run_child(const std::string& path, const std::vector<std::string>& argv,
                              const std::vector<std::string>& extra_env,
                              std::chrono::milliseconds limit, const ProcessDefaults& defaults);

}  // namespace sortie::runner::check
