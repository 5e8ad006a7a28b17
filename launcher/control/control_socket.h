// The Unix socket of the supervisor of a run: in the run folder, mode 0600, only for this user.
// Paths longer than a socket address (108 bytes) work, too. One JSON object per line in both
// directions; README.md documents them.
#pragma once

#include <filesystem>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher {

inline constexpr int kControlVersion = 1;

/// The socket of epoch N has this name, with N between both parts.
inline constexpr std::string_view kControlPrefix = "control-", kControlSuffix = ".sock";
std::filesystem::path control_path(const std::filesystem::path& run, unsigned epoch);

/// Returns a listening, non-blocking socket.
Result<Fd> listen_control(const std::filesystem::path& run, unsigned epoch);
/// Returns a connected, blocking socket whose peer belongs to this user.
Result<Fd> connect_control(const std::filesystem::path& run, unsigned epoch);
/// Fails unless the peer of `socket` runs as the user of this process.
Result<> check_peer(int socket);

}  // namespace sortie::launcher
