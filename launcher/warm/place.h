// The place of the background processes that keep connections: a folder that only this user can
// access, with one socket per build of sortie.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher::warm {

/// Returns an id of the build, which must be equal on both sides: from the hash of the runner and
/// the identity of this program's file.
std::string build_of(const std::string& runner_hash);

class Place {
 public:
  /// Opens the folder $XDG_RUNTIME_DIR/sortie, else `warm` in the state folder, and creates it if
  /// missing. ErrorCode::auth if other users can access it.
  static Result<Place> open();

  const std::filesystem::path& folder() const { return path_; }
  /// Returns the builds whose socket exists. Their processes may have exited.
  std::vector<std::string> builds() const;

  /// Returns a connected, non-blocking socket whose peer belongs to this user. ErrorCode::lost: no
  /// process listens. timeout: its listen queue is full.
  Result<Fd> connect(const std::string& build) const;
  /// Returns a listening, non-blocking socket. Replaces the socket of a dead process, so the caller
  /// must hold the lock.
  Result<Fd> listen(const std::string& build) const;
  /// Takes the lock of the listening process, which it holds until it exits. ErrorCode::lost:
  /// another process holds it.
  Result<Fd> lock(const std::string& build) const;
  void remove_socket(const std::string& build) const;
  /// Opens the log file of the processes (0600), truncated if it is above 1 MiB.
  Result<Fd> open_log() const;

 private:
  std::filesystem::path path_;
  Fd folder_;
};

}  // namespace sortie::launcher::warm
