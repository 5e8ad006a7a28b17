// Runs a short program and returns its output, bounded in time and size, for the few checks that no
// system call answers.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
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

/// Runs `path` with `argv` in a separate session and waits for its end. `environment` ("NAME=value"
/// lines) replaces the runner's own unless it is nullptr. At `limit`, kills the program and
/// everything that it started. Blocks the thread: nothing else happens in a check.
/// ErrorCode::timeout, ErrorCode::spawn.
Result<ChildOutput> run_child(const std::string& path, const std::vector<std::string>& argv,
                              const std::vector<std::string>* environment,
                              std::chrono::milliseconds limit, const ProcessDefaults& defaults);

/// The beginning of a program's output, for a message: at most 300 bytes, no newline at the end.
std::string beginning_of(std::string text);

/// The JSON object in a program's output, which may contain warnings too; empty if there is none.
nlohmann::json json_object_in(const std::string& text);

}  // namespace sortie::runner::check
