// Who supervises a run: one file per epoch in the run folder, locked by the supervisor of that
// epoch as long as it lives, whatever ends it. The first supervisor has epoch 1; who adopts the run
// takes the next one, and what an earlier epoch still does is void.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher {

class SupervisorLock {
 public:
  /// Takes `epoch` for this process. Error: somebody has it, or the folder is not writable.
  static Result<SupervisorLock> take(const std::filesystem::path& run, unsigned epoch);

  unsigned epoch() const { return epoch_; }

 private:
  Fd file_, folder_;  // the folder: so that systemd-tmpfiles leaves it alone
  unsigned epoch_ = 0;
};

/// What the files say about the latest supervisor of a run; epoch 0: there never was one.
struct SupervisorFacts {
  unsigned epoch = 0;
  pid_t pid = 0;
  std::string machine;  // where it runs
  double started = 0;   // seconds since 1970
  /// False only when that is certain: what can not be found out (no descriptor left, a file that a
  /// cleaner has removed while the folder is locked) counts as alive.
  bool alive = false;
};
SupervisorFacts supervisor_of(const std::filesystem::path& run, unsigned epoch);
SupervisorFacts latest_supervisor(const std::filesystem::path& run);

/// The file of an epoch; that it exists means that the epoch has begun.
std::filesystem::path supervisor_file(const std::filesystem::path& run, unsigned epoch);

/// The watcher of a detached run (watcher.h): a file `watcher-N` where N is the epoch of its first
/// supervisor. Removed when it ends in good order.
class WatcherLock {
 public:
  static Result<WatcherLock> take(const std::filesystem::path& run, unsigned epoch);
  WatcherLock(WatcherLock&&) = default;
  WatcherLock& operator=(WatcherLock&&) = default;
  ~WatcherLock();

 private:
  WatcherLock() = default;
  Fd file_;
  std::filesystem::path path_;
};

/// One that lives, where there is one; else `alive` is false.
SupervisorFacts watcher_of(const std::filesystem::path& run);

/// The name of this machine.
std::string machine_name();

}  // namespace sortie::launcher
