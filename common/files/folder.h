// Folder: confines a transfer's writes to one folder. Every step down is an openat of one checked
// component that follows no symlink. This works on any kernel.
#pragma once

#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::files {

class Folder {
 public:
  /// Opens the folder at `path`, which the local user has named. Creates missing folders with
  /// `mode` less the umask. Follows symlinks in `path`.
  static Result<Folder> open(const std::string& path, unsigned mode = 0777);

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }

  /// Descriptor of the folder that contains `entry_path`. Non-owning; valid until the next call.
  Result<int> parent(std::string_view entry_path);
  /// "<path>/<entry_path>" for messages.
  std::string shown(std::string_view entry_path) const;

 private:
  Folder() = default;
  std::string path_;
  Fd fd_;
  std::string parent_path_;  // path of parent_fd_, the last result of parent()
  Fd parent_fd_;
};

}  // namespace sortie::files
