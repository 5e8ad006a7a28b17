// TreeScan: lists the files and folders of a sender and hashes the files piece by piece. A step
// handles at most one piece, so that the thread, which also serves connections, is never blocked
// for long.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/wire/file_messages.h"

namespace sortie::files {

/// A path to send and its name in the manifest. If the path itself is a symlink, it is followed;
/// symlinks below it are sent as symlinks.
struct ScanRoot {
  std::string path;
  std::string name;
  bool bare = false;  // a folder without its content
};

/// Hashes one file piece by piece.
class FileHasher {
 public:
  /// Opens the file of `entry`, whose size and mode become those that it has now. `follow`: it may
  /// be a symlink. Fails for what is no regular file, a file of /proc, and one that is too large.
  static Result<FileHasher> open(std::string path, wire::FileEntry entry, bool follow);
  /// Hashes at most one piece; returns the number of its bytes. Fails if the file has become
  /// shorter.
  Result<std::uint64_t> more();
  bool done() const { return at_ >= entry_.size; }
  const std::string& path() const { return path_; }
  /// The complete entry, when done.
  wire::FileEntry take() { return std::move(entry_); }

 private:
  std::string path_;
  wire::FileEntry entry_;
  Fd file_;
  std::uint64_t at_ = 0;
  std::string buffer_;
};

class TreeScan {
 public:
  static constexpr std::uint64_t kMaxFileBytes = 256ull << 30;  // so that its hashes fit one frame

  /// Sorts the roots into manifest order. Their names must be different.
  explicit TreeScan(std::vector<ScanRoot> roots);
  /// Leaves out what can not be listed instead of failing, and calls `on_left_out` with the reason.
  void leave_out_failures(std::function<void(const Error& why)> on_left_out) {
    on_left_out_ = std::move(on_left_out);
  }
  /// Lists without reading: files are not opened, and their entries have no hashes.
  void only_list() { only_list_ = true; }

  struct Step {
    std::optional<wire::FileEntry> entry;  // a complete entry, if this step has finished one
    bool is_root = false;                  // it is the path of a ScanRoot
    bool done = false;                     // all entries have been returned
  };
  /// Performs one step. Fails, unless leave_out_failures() was called, for an unreadable file, a
  /// device or socket, a file of /proc, one that is too large, becomes shorter or is removed
  /// meanwhile.
  Result<Step> step();

  /// Path of entry number `index`, in the order in which the entries were returned.
  const std::string& path_of(std::size_t index) const { return paths_[index]; }

 private:
  struct Level {
    std::string path, name;
    std::vector<std::string> children;  // names, in reverse order
  };
  Result<Step> step_or_fail();
  Result<Step> visit(std::string path, std::string name, bool is_root, bool bare = false);
  Result<Step> hash_more();

  std::vector<ScanRoot> roots_;  // in reverse order
  std::vector<Level> levels_;
  std::vector<std::string> paths_;
  std::optional<FileHasher> hashing_;
  bool only_list_ = false;
  std::function<void(const Error& why)> on_left_out_;
};

/// Reads pieces of scanned files. Keeps the last file open.
class PieceReader {
 public:
  /// Bytes of one piece. The receiver checks them against its hash.
  Result<std::string> read(const std::string& path, std::uint64_t size, std::uint64_t piece);

 private:
  std::string path_;
  Fd file_;
};

}  // namespace sortie::files
