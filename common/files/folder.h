// Folder: a place that a transfer may write to, and nothing outside it. Every step down is an
// openat of one checked component that follows no symlink, on any kernel.
#pragma once

#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::files {

class Folder {
 public:
  /// The folder at `path`, which the user of this machine named: made (0777 less the umask, or
  /// `mode`) where it is missing, symlinks in it are followed.
  static Result<Folder> open(const std::string& path, unsigned mode = 0777);

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }

  /// Descriptor of the folder that holds `entry_path`; the last one is kept open.
  Result<int> parent(std::string_view entry_path);
  /// "<path>/<entry_path>" for messages.
  std::string shown(std::string_view entry_path) const;

 private:
  Folder() = default;
  std::string path_;
  Fd fd_;
  std::string parent_path_;  // of parent_fd_
  Fd parent_fd_;
};

}  // namespace sortie::files
