// The background process that keeps connections: how a command starts it, and what it does.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "common/base/result.h"
#include "launcher/warm/place.h"

namespace sortie::launcher::warm {

/// First word of its command line; never typed by anybody.
inline constexpr const char* kKeeperWord = "keep-connections";

/// Starts it unless one of this build is being started: in a session of its own, with nothing of
/// this process but the socket, on which clients may ask at once. `runner_file` must have the
/// content `runner_hash` when it is read there.
Result<> start_keeper(const Place& place, const std::string& build,
                      const std::filesystem::path& sortie, const std::filesystem::path& runner_file,
                      const std::string& runner_hash);

/// main() of that process; `words` are its command line.
int keep_connections(std::span<char* const> words);

}  // namespace sortie::launcher::warm
