// TreeSync: makes the files of a transfer durable: a fsync of each file, and syncfs() when they are
// so many that this takes long. A fsync takes up to 10 ms on a disk, so that 100,000 small files
// would take minutes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <future>
#include <string_view>

#include "common/base/result.h"

namespace sortie::files {

class TreeSync {
 public:
  /// Whether syncfs() takes the place of fsync() on the file system of the open file `tree`: the
  /// kernel reports failed writes (Linux 5.8 and newer), and the file system is a local one.
  static bool replaces_fsync(int tree);

  /// After `limit` of time in fsync() the whole file system of the tree is synced instead. Not at
  /// once, because syncfs() also waits for what other programs have written. For tests, which
  /// shorten the limit.
  void set_limit(std::chrono::nanoseconds limit) { limit_ = limit; }

  /// Makes the content of `file` durable, which belongs to the tree in the folder `tree`. All
  /// content of the tree must have been written before the first call. Returns false if more calls
  /// are needed; each of them waits for a short time only.
  Result<bool> sync_file(int tree, int file);
  /// Makes the names in folder `name` of `parent` durable, unless sync_tree() will do so.
  Result<> sync_folder(int parent, std::string_view name);
  /// Makes the names in the folder `tree` durable, and those in all folders if syncfs() is used.
  /// Returns false as sync_file().
  Result<bool> sync_tree(int tree);

 private:
  bool covers(dev_t device) const { return whole_ && device == device_; }
  void start(int tree);
  Result<bool> wait();

  std::chrono::nanoseconds limit_ = std::chrono::milliseconds(250);
  std::chrono::nanoseconds spent_{0};
  std::future<int> call_;  // of syncfs(): 0 or errno
  bool whole_ = false;     // syncfs() has written the content of all files
  dev_t device_ = 0;       // of the file system that it has written
};

}  // namespace sortie::files
