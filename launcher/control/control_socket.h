// The Unix socket of a run's supervisor: in the run folder, 0600, for this user alone. Paths longer
// than a socket address (108 bytes) work too. One JSON object a line, both ways; README.md has
// them.
#pragma once

#include <filesystem>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher {

inline constexpr int kControlVersion = 1;

std::filesystem::path control_path(const std::filesystem::path& run, unsigned epoch);

/// A listening, non-blocking socket.
Result<Fd> listen_control(const std::filesystem::path& run, unsigned epoch);
/// A connected, blocking socket whose other end is of this user.
Result<Fd> connect_control(const std::filesystem::path& run, unsigned epoch);
/// Whether the process at the other end has this process's user.
Result<> check_peer(int socket);

}  // namespace sortie::launcher
