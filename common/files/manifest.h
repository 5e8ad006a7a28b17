// Manifests and lists of pieces as they come from a peer: checked entry by entry, bounded in
// memory, cut into messages of a bounded size.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/wire/file_messages.h"

namespace sortie::files {

/// Takes a manifest in. Any error is ErrorCode::data (or protocol) and final.
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
  std::vector<std::string> folders_;  // the open ones, outermost first
  bool complete_ = false;
};

/// Memory that an entry takes, about.
std::uint64_t entry_bytes(const wire::FileEntry& entry);

/// A list of wanted pieces as it comes in. Ranges must lie in the manifest.
class WantedReader {
 public:
  static constexpr std::size_t kMaxRanges = 1'000'000;
  Result<> add(const wire::FilesWanted& message, const std::vector<wire::FileEntry>& entries);
  bool complete() const { return complete_; }
  std::vector<wire::PieceRange> take();

 private:
  std::vector<wire::PieceRange> ranges_;
  bool complete_ = false;
};

/// The next message of a list, of about 512 KiB; moves `at` on. The last one has last = 1.
wire::FilesManifest manifest_part(const std::vector<wire::FileEntry>& entries, std::size_t& at);
/// Calls `send` with all of them.
void send_manifest(const std::vector<wire::FileEntry>& entries,
                   const std::function<void(wire::FilesManifest)>& send);
void send_wanted(const std::vector<wire::PieceRange>& ranges, const wire::FilesWanted& frame,
                 const std::function<void(wire::FilesWanted)>& send);

}  // namespace sortie::files
