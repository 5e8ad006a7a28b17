// TreeScan: what a sender has. Lists files and folders, hashing files piece by piece, in steps of
// at most one piece so that the thread which also keeps connections alive is never held for long.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/wire/file_messages.h"

namespace sortie::files {

/// A path to send and its name in the manifest. Where the path itself is a symlink it is followed;
/// below it symlinks are sent as symlinks.
struct ScanRoot {
  std::string path;
  std::string name;
  bool bare = false;  // a folder without what is in it
};

class TreeScan {
 public:
  static constexpr std::uint64_t kMaxFileBytes = 256ull << 30;  // its hashes fit one frame

  /// Roots are put into manifest order. Names must be different.
  explicit TreeScan(std::vector<ScanRoot> roots);

  struct Step {
    std::optional<wire::FileEntry> entry;  // found, complete
    bool done = false;                     // nothing is left
  };
  /// A little further. Error: unreadable, a device or socket, a file that changes meanwhile.
  Result<Step> step();

  std::uint64_t bytes_hashed() const { return bytes_hashed_; }
  /// Where entry number `index` came from, in the order in which entries were given out.
  const std::string& path_of(std::size_t index) const { return paths_[index]; }

 private:
  struct Level {
    std::string path, name;
    std::vector<std::string> children;  // names, last first
  };
  Result<Step> visit(std::string path, std::string name, bool follow, bool bare = false);
  Result<Step> hash_more();

  std::vector<ScanRoot> roots_;  // last first
  std::vector<Level> levels_;
  std::vector<std::string> paths_;
  Fd file_;
  wire::FileEntry hashing_;
  std::uint64_t at_ = 0;
  std::string buffer_;
  std::uint64_t bytes_hashed_ = 0;
};

/// Reads pieces of files that were scanned; keeps the last file open.
class PieceReader {
 public:
  /// Bytes of one piece. The receiver checks them against its hash.
  Result<std::string> read(const std::string& path, std::uint64_t size, std::uint64_t piece);

 private:
  std::string path_;
  Fd file_;
};

}  // namespace sortie::files
