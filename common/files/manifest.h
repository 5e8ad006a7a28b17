// Manifests and lists of pieces. Received ones are checked entry by entry and bounded in memory;
// sent ones are split into messages of bounded size.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/wire/file_messages.h"

namespace sortie::files {

/// Assembles a received manifest. Any error is ErrorCode::data (or protocol) and permanent.
class ManifestReader {
 public:
  static constexpr std::uint64_t kMaxBytes = 256u << 20;
  static constexpr std::size_t kMaxEntries = 2'000'000;

  explicit ManifestReader(std::uint64_t max_bytes = kMaxBytes) : max_bytes_(max_bytes) {}

  /// Checks names, order, parents, sizes and number of hashes.
  Result<> add(wire::FilesManifest message);
  bool complete() const { return complete_; }
  const std::vector<wire::FileEntry>& entries() const { return entries_; }
  std::vector<wire::FileEntry> take() { return std::move(entries_); }

 private:
  Result<> check(const wire::FileEntry& entry);

  std::uint64_t max_bytes_, bytes_ = 0;
  std::vector<wire::FileEntry> entries_;
  std::vector<std::string> folders_;  // that contain the last entry, outermost first
  bool complete_ = false;
};

/// Approximate memory of an entry.
std::uint64_t entry_bytes(const wire::FileEntry& entry);

/// Assembles a received list of wanted pieces. Ranges must be within the manifest.
class WantedReader {
 public:
  /// A range is within one file, so there are as many as files, and more where pieces of a file are
  /// scattered. 12 bytes each.
  static constexpr std::size_t kMaxRanges = 2 * ManifestReader::kMaxEntries;
  Result<> add(const wire::FilesWanted& message, const std::vector<wire::FileEntry>& entries);
  bool complete() const { return complete_; }
  std::vector<wire::PieceRange> take();

 private:
  std::vector<wire::PieceRange> ranges_;
  bool complete_ = false;
};

/// Returns the next message of a list, of about 512 KiB, and advances `at`. In the last message
/// `last` is 1.
wire::FilesManifest manifest_part(const std::vector<wire::FileEntry>& entries, std::size_t& at);
/// Calls `send` with each message of the list.
void send_wanted(const std::vector<wire::PieceRange>& ranges, const wire::FilesWanted& frame,
                 const std::function<void(wire::FilesWanted)>& send);

}  // namespace sortie::files
