// StageExtras: removes from a staged tree what its ranks have added, in steps, so that the runner's
// thread can send heartbeats between them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/wire/file_messages.h"

namespace sortie::runner {

class StageExtras {
 public:
  /// `entries`, in the order of a manifest, must outlive this object. No job may use the tree.
  StageExtras(std::string tree, const std::vector<wire::FileEntry>& entries);

  /// Looks at some files. Returns true if the work is done; else call it again. What can not be
  /// removed stays, with a warning in the log.
  bool step();

 private:
  bool listed(const std::string& path) const;

  std::string tree_;
  const std::vector<wire::FileEntry>* entries_;
  std::filesystem::recursive_directory_iterator at_;
};

}  // namespace sortie::runner
