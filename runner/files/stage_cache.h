// StageCache: ~/.cache/sortie/stage/<hash>/, the staged trees of a host, kept between runs.
// <hash>.part is a tree that is being filled. <hash>.lock is locked exclusively by the runner that
// fills the tree, and shared by those that use it. The modification time of the lock file is the
// time of the last use; its content is the size of the tree.
//
// On a file system without locks, each runner fills its own <hash>.part-<letters>. The first
// complete one becomes the tree. Nothing is pruned, because it is unknown which trees are in use.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/files/folder.h"
#include "common/wire/file_messages.h"
#include "runner/files/stage_extras.h"
#include "runner/files/stage_pruner.h"

namespace sortie::runner {

class StageCache {
 public:
  /// Creates the folders (0700, a tree in use 0755). `key`: 64 hex digits.
  static Result<StageCache> open(const std::string& key);

  /// Returns true if we hold the lock, either to use the existing tree or to fill the cache.
  /// Returns false if another process is filling it; call again later. ErrorCode::io if the tree
  /// was removed while another job uses it, seen in many calls in a row.
  Result<bool> try_lock();
  // Each call of ready() and install() does a part of the work, so that the runner can send
  // heartbeats between them.
  /// Whether the tree exists as it was installed: names, kinds, modes, sizes, and times that prove
  /// that nothing was written since. nullopt: call it again. If we hold the lock exclusively, files
  /// that a job has added are removed, and an incomplete tree becomes the part again. `entries`
  /// must be the same and stay in place.
  std::optional<bool> ready(const std::vector<wire::FileEntry>& entries);
  /// The folder to fill with `bytes` bytes. ErrorCode::io if another job uses the tree.
  Result<files::Folder> part(std::uint64_t bytes) const;
  /// Turns the part into the tree. Returns false if it is to be called again. Without locks, also
  /// succeeds if another runner's part has become the tree meanwhile.
  Result<bool> install(const std::vector<wire::FileEntry>& entries);
  /// Marks the tree as in use: downgrades to a shared lock and sets the time of use.
  Result<> use();
  /// Removes the least recently used trees that are not in use, until the rest fits into `limit`
  /// bytes. Without locks, removes only abandoned parts.
  StagePruner pruner(std::uint64_t limit) const;
  /// Removes the least recently used trees that are not in use, until the disk has room for
  /// `entries`, or at least for a lock. Without locks, removes only abandoned parts.
  StagePruner room_pruner(const std::vector<wire::FileEntry>& entries) const;
  /// Adds to an error what a user can do about a disk or a quota that is full.
  Error with_advice(Error error) const;

  std::string folder() const { return base_ + "/" + key_; }
  /// Text for the user: why we wait for the lock, and how to find its holder.
  std::string holder_hint() const;

 private:
  StageCache() = default;
  Result<> note_size(std::uint64_t bytes) const;
  std::optional<bool> compare_some(const std::vector<wire::FileEntry>& entries);
  Result<bool> rename_part();
  std::string part_folder() const;

  std::string base_, key_;
  Fd lock_;
  bool exclusive_ = false;
  // Since when the tree is in use, but missing.
  std::optional<std::chrono::steady_clock::time_point> removed_since_;
  std::string letters_;  // suffix of our part; empty if the file system has locks. Otherwise
                         // exclusive_ is true and excludes no other process
  std::optional<StageExtras> extras_;     // ready(): removes them
  std::size_t compared_ = 0, dated_ = 0;  // entries that ready() and install() have handled
  bool damaged_ = false;                  // ready(): the tree is to become the part
  bool replaced_ = false;                 // install(): another runner's part has become the tree,
  bool is_same_ = false;                  // which is as ours
};

}  // namespace sortie::runner
