// Shares of a checkpoint in memory files: parts of the state of a run between two steps, kept by
// its hosts.
//
// A share is two files of a folder in memory (SORTIE_MEMORY):
//
//   share-00003-of-00008.a.data   its bytes, piece after piece
//   share-00003-of-00008.a.seal   describes them: manifest, attempt, pieces, SHA-256 of the bytes
//
// The seal exists only while the bytes are complete: it is removed before they are overwritten, and
// created, by a rename, when they are written and hashed. So a process that dies at any moment
// leaves no share that looks complete and is not. Slots ("a", "b") alternate, so that a snapshot in
// progress leaves the previous one untouched.
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
  ShardInfo shard{};         // `file` names the data file
};

/// The bytes of a share, mapped for writing.
class ShareMemory {
 public:
  /// Allocates all pages: ErrorCode::io if the file system or the host does not have enough. Reuses
  /// a file of that name and size; if it is sealed, the caller must unseal it first.
  static Result<ShareMemory> take(const std::filesystem::path& folder, const ShareName& name,
                                  std::uint64_t bytes);
  ShareMemory() = default;
  ShareMemory(ShareMemory&& other) noexcept;
  ShareMemory& operator=(ShareMemory&& other) noexcept;
  ~ShareMemory();

  std::span<std::byte> bytes() const { return bytes_; }
  /// Sets a function that is called once with the bytes before they are unmapped; it moves with
  /// them. It must not throw.
  void on_release(std::function<void(std::span<std::byte>)> what) { release_ = std::move(what); }
  /// Whether the path still refers to this file: the folder may have been removed and created
  /// again.
  bool is_named() const;

 private:
  std::filesystem::path path_;
  Fd file_;
  std::span<std::byte> bytes_;
  std::function<void(std::span<std::byte>)> release_;
};

std::filesystem::path share_data_path(const std::filesystem::path& folder, const ShareName& name);

/// Seals a share whose bytes are complete: a restart finds it from now on.
Result<> seal_share(const std::filesystem::path& folder, const SealedShare& share);
/// Removes the seal: a restart does not find the share from now on. No-op if it is not sealed.
Result<> unseal_share(const std::filesystem::path& folder, const ShareName& name);

/// Returns the sealed shares of the run in the folder; skips those that are damaged or of another
/// run. Empty if the folder is absent. Does not verify the bytes.
std::vector<SealedShare> sealed_shares(const std::filesystem::path& folder,
                                       const std::string& run_id);
/// Removes all shares except those of `kept`, bytes and seals, and partly written seals.
Result<> remove_shares_but(const std::filesystem::path& folder, const std::vector<ShareName>& kept);

}  // namespace sortie::trainer
