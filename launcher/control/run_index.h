// RunIndex: locates the folders of runs, and finds a run by the name that the user gives.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher {

class RunIndex {
 public:
  /// Opens all state folders of this user's runs: the default one and each remembered
  /// logger.log_dir. With `log_dir`: only that one.
  static Result<RunIndex> open(const std::string& log_dir);

  /// Remembers `log_dir` as the place of a run for later commands. Ignores errors.
  static void remember(const std::filesystem::path& log_dir);

  /// Returns the folders of all runs, oldest first.
  std::vector<std::filesystem::path> runs() const;

  /// Finds a run by its ID, a unique beginning of it, its ending after a "-", `last`, or the path
  /// of its folder. The error lists candidates.
  Result<std::filesystem::path> find(const std::string& name) const;

 private:
  std::vector<std::filesystem::path> states_;
};

}  // namespace sortie::launcher
