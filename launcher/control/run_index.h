// RunIndex: where the folders of runs are, and which one a person means.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher {

class RunIndex {
 public:
  /// All state folders that this user's runs were kept in: the usual one, and each logger.log_dir
  /// that was remembered. With `log_dir`: that one alone.
  static Result<RunIndex> open(const std::string& log_dir);

  /// A run was kept in `log_dir`: later commands find it there. Never fails a run.
  static void remember(const std::filesystem::path& log_dir);

  /// Folders of runs, oldest first.
  std::vector<std::filesystem::path> runs() const;

  /// An id, the unique beginning of one, `last`, or the path of a run folder. The error lists what
  /// comes near.
  Result<std::filesystem::path> find(const std::string& name) const;

 private:
  std::vector<std::filesystem::path> states_;
};

}  // namespace sortie::launcher
