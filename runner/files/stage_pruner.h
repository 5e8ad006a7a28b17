// StagePruner: removes trees from the stage cache, in steps, so that the runner's thread can send
// heartbeats between them.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>

#include "common/base/fd.h"

namespace sortie::runner {

class StagePruner {
 public:
  static constexpr std::chrono::hours kOldPart{7 * 24};

  /// For the least recently used trees in the folder `base` that are not in use, until the rest
  /// fits into `limit` bytes. The tree `own` stays.
  static StagePruner of_trees(const std::string& base, const std::string& own, std::uint64_t limit);
  /// The same until the file system has room for `room` bytes. Also for the parts of killed
  /// stagings.
  static StagePruner for_room(const std::string& base, const std::string& own, std::uint64_t room);
  /// For parts of killed stagings on a file system without locks, which can not show that their
  /// owners are dead: those that have not changed for so long.
  static StagePruner of_old_parts(const std::string& base, std::chrono::seconds age = kOldPart);

  /// Removes some files. Returns true if the work is done; else call it again.
  bool step();

 private:
  struct Tree {
    std::string path;
    std::uint64_t bytes = 0;
  };
  static StagePruner of_unused(const std::string& base, const std::string& own);
  bool enough() const;
  bool take_next();

  std::string base_;
  std::deque<Tree> trees_;    // candidates, least recently used first
  std::uint64_t total_ = 0;   // bytes of all trees
  std::uint64_t excess_ = 0;  // bytes that are still to be removed
  std::uint64_t room_ = 0;    // if not 0: bytes that are to be free, instead of `excess_`
  bool locked_ = true;        // candidates have locks
  std::string removing_;      // path of a tree that is being removed; empty = none
  Fd lock_;                   // of that tree
};

}  // namespace sortie::runner
