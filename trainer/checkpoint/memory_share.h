// Shares of a checkpoint in memory files: one host's part of the state of a run between two steps.
//
// A share is two files of a folder that lives in memory (SORTIE_MEMORY):
//
//   share-00003-of-00008.a.data   its bytes, piece after piece
//   share-00003-of-00008.a.seal   what they are: manifest, attempt, pieces, SHA-256 of the bytes
//
// The seal is there only while the bytes are whole: it goes before they are overwritten, and comes,
// by a rename, when they are written and hashed. So a process that dies at any moment leaves no
// share that looks better than it is. Slots ("a", "b") take turns, so that a snapshot under way
// leaves the one before it alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "trainer/checkpoint/manifest.h"

namespace sortie::trainer {

struct ShareName {
  std::size_t index = 0, count = 1;  // share `index` of `count`
  char slot = 'a';                   // 'a' or 'b'

  /// "share-00003-of-00008.a"
  std::string text() const;
  auto operator<=>(const ShareName&) const = default;
};

inline constexpr char other_slot(char slot) {
  return slot == 'a' ? 'b' : 'a';
}

struct SealedShare {
  ShareName name{};
  std::int64_t attempt = 1;  // that wrote it
  Manifest manifest{};       // without shards and tensors
  ShardInfo shard{};         // `file` is that of the bytes
};

/// The bytes of a share, mapped for writing.
class ShareMemory {
 public:
  /// Takes the pages now: ErrorCode::io where the file system or the host has not enough. A file of
  /// that name and size is used again; whoever has it sealed unseals it first.
  static Result<ShareMemory> take(const std::filesystem::path& folder, const ShareName& name,
                                  std::uint64_t bytes);
  ShareMemory() = default;
  ShareMemory(ShareMemory&& other) noexcept;
  ShareMemory& operator=(ShareMemory&& other) noexcept;
  ~ShareMemory();

  std::span<std::byte> bytes() const { return bytes_; }
  /// Called once with the bytes, before they are unmapped; moves with them. It throws nothing.
  void on_release(std::function<void(std::span<std::byte>)> what) { release_ = std::move(what); }
  /// Whether the path still names this file: the folder may have been removed and made again.
  bool is_named() const;

 private:
  std::filesystem::path path_;
  Fd file_;
  std::span<std::byte> bytes_;
  std::function<void(std::span<std::byte>)> release_;
};

std::filesystem::path share_data_path(const std::filesystem::path& folder, const ShareName& name);

/// The bytes, which are whole, become a share that a restart finds.
Result<> seal_share(const std::filesystem::path& folder, const SealedShare& share);
/// From now on a restart does not find it. One that was never sealed is fine.
Result<> unseal_share(const std::filesystem::path& folder, const ShareName& name);

/// The sealed shares of the run in the folder; what is damaged, or of another run, is left out. An
/// absent folder has none. The bytes are not looked at.
std::vector<SealedShare> sealed_shares(const std::filesystem::path& folder,
                                       const std::string& run_id);
/// Removes all shares but those of `kept`, bytes and seals, and what a seal left half written.
Result<> remove_shares_but(const std::filesystem::path& folder, const std::vector<ShareName>& kept);

}  // namespace sortie::trainer
