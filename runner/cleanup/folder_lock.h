// Who holds a run folder. Runner, keepers and the containers' guard lock it, shared, as long as
// they live. Locked are the folder itself, which makes systemd-tmpfiles leave it and all in it
// alone, and the file "lock" in it, which earlier builds of Sortie look at.
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
  /// Makes the lock file where it is missing. Error: the folder can not be opened or locked.
  static Result<FolderLock> take(const std::string& folder);

  /// Whether no other process holds the folder. May let go of the lock: for one that is leaving.
  bool is_last() const;
  /// Of all of it: two that ask together must not each keep the part that the other one needs.
  void let_go() const;

 private:
  Fd folder_, file_;
};

/// The same for a process that goes on without a lock where none can be had.
std::optional<FolderLock> hold_folder(const std::string& folder);

/// False only when it is certain that no living process holds the folder. What can not be found out
/// (no descriptor left, no locks on this file system) counts as held. A folder that a cleaner has
/// removed is held when a process of this user still has it, or a file of it, open.
bool may_be_held(const std::string& folder);

/// Whether a file that the process has open (its path, as /proc tells it) fulfils `wanted`.
/// `process`: "/proc/PID".
bool has_open(const std::string& process, const std::function<bool(std::string_view path)>& wanted);

}  // namespace sortie::runner
