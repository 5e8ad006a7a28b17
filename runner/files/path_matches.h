// PathMatches: what the paths of `sortie pull` stand for on this host. A path is a name, or a
// pattern in which * and ? stand for characters within a name and [a-c] for one of some, as in a
// shell; names that begin with a dot match only a dot.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/files/tree_scan.h"

namespace sortie::runner {

class PathMatches {
 public:
  static constexpr std::size_t kMaxMatches = 100'000;

  explicit PathMatches(std::vector<std::string> paths);

  /// Looks into one more folder at most; true when all is found. Error: two matches would have one
  /// name, more than kMaxMatches, or a path that no host can have.
  Result<bool> step();

  /// Once step() gave true. A match of a pattern is named from its first name with a wildcard on
  /// ("runs/*/loss" gives "a/loss"), with the folders above it as bare roots; another by its last
  /// name.
  std::vector<files::ScanRoot> take_roots();
  /// Paths that nothing comes of, each as "PATH: the reason".
  const std::vector<std::string>& missing() const { return missing_; }

 private:
  /// A pattern that is followed: `folder` matches its components before `next`.
  struct Branch {
    std::size_t path = 0;
    std::size_t next = 0;
    std::string folder, name;
  };
  Result<> begin(std::size_t path);
  Result<> follow(Branch branch);
  Result<> found(std::size_t path, std::string full, std::string name);

  std::vector<std::string> paths_;
  std::vector<std::vector<std::string>> components_;  // of each path, once begun
  std::vector<bool> matched_;
  std::vector<Branch> branches_;  // last first
  std::size_t begun_ = 0;
  std::map<std::string, files::ScanRoot> roots_;  // by name
  std::vector<std::string> missing_;
};

}  // namespace sortie::runner
