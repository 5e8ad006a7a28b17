// Records which processes hold a run folder. Runner, keepers and the containers' guard hold a
// shared lock on it while they live. They lock the folder itself, which makes systemd-tmpfiles skip
// it and its contents, and the file "lock" in it, which earlier builds of Sortie check.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::runner {

class FolderLock {
 public:
  /// Creates the lock file if it is missing. Error: the folder can not be opened or locked.
  static Result<FolderLock> take(const std::string& folder);

  /// Whether no other process holds the folder. May release the lock, so only a process that exits
  /// should call it.
  bool is_last() const;
  /// Releases both locks: of two processes that call is_last() together, neither must keep the one
  /// that the other needs.
  void let_go() const;

 private:
  Fd folder_, file_;
};

/// Same, for a process that continues without a lock if it can not get one.
std::optional<FolderLock> hold_folder(const std::string& folder);

/// Returns false only if it is certain that no living process holds the folder. If that can not be
/// determined (no descriptor left, no locks on this file system), the result is true. A removed
/// folder is held if a process of this user still has it, or a file in it, open.
bool may_be_held(const std::string& folder);

/// Returns false only if it is certain that no process of this user in this pid namespace has the
/// folder, or a file in it, open.
bool may_be_held_here(const std::string& folder);

/// Whether the process has a file open whose path, as in /proc, satisfies `wanted`. `process`:
/// "/proc/PID".
bool has_open(const std::string& process, const std::function<bool(std::string_view path)>& wanted);

}  // namespace sortie::runner
