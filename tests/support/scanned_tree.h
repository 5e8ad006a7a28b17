// ScannedTree: the entries of a tree, scanned as by a sender of files, in one call.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/files/tree_scan.h"

namespace sortie::test {

struct ScannedTree {
  std::vector<wire::FileEntry> entries;
  std::vector<std::string> paths;
};

inline Result<ScannedTree> scan_tree(const std::filesystem::path& path, const std::string& name) {
  files::TreeScan scan({{path.string(), name}});
  ScannedTree tree;
  for (;;) {
    SORTIE_ASSIGN_OR_RETURN(files::TreeScan::Step step, scan.step());
    if (step.done) return tree;
    if (!step.entry) continue;
    tree.paths.push_back(scan.path_of(tree.entries.size()));
    tree.entries.push_back(std::move(*step.entry));
  }
}

/// Permission bits (of a symlink itself, not its target); all bits set if the path does not exist.
inline unsigned mode_of(const std::filesystem::path& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 ? info.st_mode & 07777u : ~0u;
}

}  // namespace sortie::test
