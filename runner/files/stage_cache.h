// StageCache: ~/.cache/sortie/stage/<hash>/, the staged trees of a host, kept between runs.
// <hash>.part is one that is being filled, <hash>.lock is held exclusively by who fills it and
// shared by who uses it; its time is that of the last use, its content the size of the tree.
//
// On a file system without locks everybody fills a part of his own, <hash>.part-<letters>, the
// first one that is whole becomes the tree, and nothing is pruned: nobody knows what is in use.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/files/folder.h"
#include "common/wire/file_messages.h"

namespace sortie::runner {

class StageCache {
 public:
  /// Makes the folders (0700). `key`: 64 hex digits.
  static Result<StageCache> open(const std::string& key);

  /// True: the lock is ours, either to use what is there or to fill the cache. False: somebody else
  /// is filling it; ask again.
  Result<bool> try_lock();
  /// Whether the tree is there as it was put: names, kinds, modes, sizes, and times that show that
  /// nothing was written since. A tree that is not becomes the part again.
  bool ready(const std::vector<wire::FileEntry>& entries);
  /// The folder to fill with `bytes`.
  Result<files::Folder> part(std::uint64_t bytes) const;
  /// The part becomes the tree; without locks also when somebody else's has become it meanwhile.
  Result<> install(const std::vector<wire::FileEntry>& entries);
  /// From now on in use: shared lock, time of use.
  Result<> use();
  /// Removes least recently used trees, none in use, until what is left is within `limit` bytes.
  void prune(std::uint64_t limit) const;

  std::string folder() const { return base_ + "/" + key_; }
  /// What a wait for the lock is for, and how to see who has it; for a person.
  std::string holder_hint() const;

 private:
  StageCache() = default;
  Result<> note_size(std::uint64_t bytes) const;
  bool is_whole(const std::vector<wire::FileEntry>& entries) const;
  std::string part_folder() const;
  void remove_old_parts() const;
  std::string base_, key_;
  Fd lock_;
  bool exclusive_ = false;
  std::string letters_;  // of our part; empty where there are locks. Else exclusive_ is true, and
                         // nobody is kept out
};

}  // namespace sortie::runner
