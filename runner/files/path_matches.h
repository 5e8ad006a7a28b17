// PathMatches: resolves the paths of `sortie pull` on this host. A path is a name or a pattern as
// in a shell: * and ? match characters within a name, [a-c] matches one of a set. A leading dot of
// a name is matched only by a dot.
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

  /// Searches at most one more folder. Returns true when all matches are found. Error: two matches
  /// would get the same name, more than kMaxMatches, or an invalid path.
  Result<bool> step();

  /// The matches, once step() has returned true. The name of a pattern's match starts at the first
  /// component with a wildcard ("runs/*/loss" yields "a/loss"); its parent folders are added as
  /// bare roots. The name of any other match is its last component.
  std::vector<files::ScanRoot> take_roots();
  /// Paths without a match; the messages are "PATH: the reason".
  const std::vector<Error>& missing() const { return missing_; }

 private:
  /// A partially matched pattern: `folder` matches its components before `next`.
  struct Branch {
    std::size_t path = 0;
    std::size_t next = 0;
    std::string folder, name;
  };
  Result<> begin(std::size_t path);
  Result<> follow(Branch branch);
  Result<> found(std::size_t path, std::string full, std::string name);

  std::vector<std::string> paths_;
  std::vector<std::vector<std::string>> components_;  // of each path; filled in by begin()
  std::vector<bool> matched_;
  std::vector<Branch> branches_;  // processed from the back
  std::size_t begun_ = 0;
  std::map<std::string, files::ScanRoot> roots_;  // by name
  std::vector<Error> missing_;
};

}  // namespace sortie::runner
