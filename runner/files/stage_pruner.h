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
  bool take_next();

  std::deque<Tree> trees_;    // candidates, least recently used first
  std::uint64_t excess_ = 0;  // bytes that are still to be removed
  bool locked_ = true;        // candidates have locks
  std::string removing_;      // path of a tree that is being removed; empty = none
  Fd lock_;                   // of that tree
};

}  // namespace sortie::runner
