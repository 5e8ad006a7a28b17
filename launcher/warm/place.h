// Where the background process that keeps connections is found: a socket in a folder that only this
// user may enter, one for each build of sortie.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher::warm {

/// What has to be the same at both ends: the runner (its hash) and this program's own file.
std::string build_of(const std::string& runner_hash);

class Place {
 public:
  /// Makes the folder where it is missing: $XDG_RUNTIME_DIR/sortie, else `warm` in the state
  /// folder. ErrorCode::auth when others may enter it.
  static Result<Place> open();

  const std::filesystem::path& folder() const { return path_; }
  /// The builds whose socket is there; perhaps nobody listens any more.
  std::vector<std::string> builds() const;

  /// A connected, non-blocking socket whose other end is of this user. ErrorCode::lost: nobody
  /// listens; timeout: so many wait that it can not be asked now.
  Result<Fd> connect(const std::string& build) const;
  /// Listens, non-blocking, in place of whoever may have died. Only with the lock.
  Result<Fd> listen(const std::string& build) const;
  /// Held by the process that listens, as long as it lives. ErrorCode::lost: another one has it.
  Result<Fd> lock(const std::string& build) const;
  void remove_socket(const std::string& build) const;
  /// Of this build's process; 0600, begun anew when it is large.
  Result<Fd> open_log() const;

 private:
  std::filesystem::path path_;
  Fd folder_;
};

}  // namespace sortie::launcher::warm
