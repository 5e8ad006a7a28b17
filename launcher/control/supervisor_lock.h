// Determines which process supervises a run. There is one file per epoch in the run folder, locked
// by the supervisor of that epoch until it exits for any reason. The first supervisor has epoch 1.
// A supervisor that adopts the run takes the next epoch; actions of earlier epochs are then void.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher {

class SupervisorLock {
 public:
  /// Takes `epoch` for this process. Error: the epoch is taken, or the folder is not writable.
  static Result<SupervisorLock> take(const std::filesystem::path& run, unsigned epoch);

  unsigned epoch() const { return epoch_; }

 private:
  Fd file_, folder_;  // the folder is locked so that systemd-tmpfiles does not clean it
  unsigned epoch_ = 0;
};

/// A supervisor of a run as described by its file. Epoch 0: the run never had one, or a cleaner of
/// old files has removed all traces of it.
struct SupervisorFacts {
  unsigned epoch = 0;
  pid_t pid = 0;        // 0: its file was removed
  std::string machine;  // the machine that it runs on; empty: its file was removed
  double started = 0;   // seconds since 1970; 0: its file was removed
  /// False only if that is certain. True if it can not be determined (no descriptor left; a cleaner
  /// has removed the file while the folder is locked).
  bool alive = false;

  /// Whether it is known to run on another machine.
  bool elsewhere() const;
  /// "pid 12 on h01", or that its file was removed.
  std::string process() const;
};
SupervisorFacts supervisor_of(const std::filesystem::path& run, unsigned epoch);
/// The epoch is also known from the control socket, which cleaners of old files leave more often.
SupervisorFacts latest_supervisor(const std::filesystem::path& run);

/// What to do about a supervisor that may live and can not be asked, and whose file was removed.
std::string help_without_file(const std::filesystem::path& run, const SupervisorFacts& facts);

/// The file of an epoch. Its existence means that the epoch has begun.
std::filesystem::path supervisor_file(const std::filesystem::path& run, unsigned epoch);

/// Lock of the watcher of a detached run (watcher.h): a file `watcher-N`, where N is the epoch of
/// the supervisor that it first watches. The destructor removes it.
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

/// Returns a living watcher of the run; `alive` is false if there is none.
SupervisorFacts watcher_of(const std::filesystem::path& run);

/// Host name of this machine.
std::string machine_name();

}  // namespace sortie::launcher
