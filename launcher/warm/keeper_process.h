// The background process that keeps connections: its start by a command, and its main function.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "common/base/result.h"
#include "launcher/warm/place.h"

namespace sortie::launcher::warm {

/// First argument of its command line. Internal: users never type it.
inline constexpr const char* kKeeperWord = "keep-connections";

/// Starts the process, unless one of this build is being started. It gets its own session and
/// inherits only the listening socket, its lock and its log, so that clients may connect at once.
/// `runner_file` must have the hash `runner_hash` when the process reads it.
Result<> start_keeper(const Place& place, const std::string& build,
                      const std::filesystem::path& sortie, const std::filesystem::path& runner_file,
                      const std::string& runner_hash);

/// main() of the process; `words` is its command line. Returns the exit code.
int keep_connections(std::span<char* const> words);

}  // namespace sortie::launcher::warm
