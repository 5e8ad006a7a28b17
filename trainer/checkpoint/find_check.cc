// check_checkpoint() of find.h: COMMIT, the manifest, and the bytes of the shards.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "common/base/atomic_file.h"
#include "common/base/fd.h"
#include "trainer/checkpoint/extra_files.h"
#include "trainer/checkpoint/file_ops.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMaxManifest = std::size_t{1} << 30;
constexpr std::size_t kReadAtOnce = std::size_t{1} << 20;

std::unexpected<Error> broken(const fs::path& folder, std::string_view what) {
  return fail(ErrorCode::checkpoint, fmt::format("{}: {}", folder.string(), what));
}

Result<std::string> read_part(const fs::path& folder, std::string_view name, std::size_t limit) {
  auto content = read_file(folder / name, limit);
  if (!content && content.error().code == ErrorCode::not_found)
    return broken(folder, fmt::format("has no {}: never committed, or damaged", name));
  if (!content) return std::unexpected(std::move(content).error());
  return content;
}

/// Reads a shard from the disk, and not through a mapping: a sector that cannot be read would end
/// the process.
class ShardBytes {
 public:
  static Result<ShardBytes> open(const fs::path& path) {
    ShardBytes shard;
    shard.path_ = path;
    shard.file_ = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat info {};
    if (!shard.file_ || ::fstat(shard.file_.get(), &info) != 0)
      return std::unexpected(os_error(errno, "open " + path.string(), ErrorCode::checkpoint));
    if (!S_ISREG(info.st_mode)) return broken(path, "not a regular file");
    shard.size_ = static_cast<std::uint64_t>(info.st_size);
    ::posix_fadvise(shard.file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    return shard;
  }
  std::uint64_t size() const { return size_; }

  /// ErrorCode::checkpoint if not all bytes can be read.
  Result<> read(std::uint64_t offset, std::span<std::byte> bytes) const {
    auto count = file_ops::read_at(file_, offset, bytes, path_);
    if (!count) return fail(ErrorCode::checkpoint, std::move(count).error().message);
    if (*count < bytes.size())
      return broken(path_, fmt::format("ends at byte {}, it had {}; the file was changed",
                                       offset + *count, size_));
    return {};
  }

  Result<SafetensorsHeader> header() const {
    std::uint64_t length = 0;
    std::vector<std::byte> head(std::min<std::uint64_t>(size_, sizeof length));
    SORTIE_TRY(read(0, head));
    if (head.size() == sizeof length) std::memcpy(&length, head.data(), sizeof length);
    if (length > 0 && length <= kMaxSafetensorsHeader) {
      head.resize(std::min(size_, sizeof length + length));
      SORTIE_TRY(read(0, head));
    }
    return parse_safetensors_header(head, size_, path_.string());
  }

 private:
  fs::path path_;
  Fd file_;
  std::uint64_t size_ = 0;
};

/// Checks a shard against its hash and against what the manifest says is in it.
Result<> check_shard_bytes(const fs::path& path, const Manifest& manifest, std::size_t index,
                           const std::stop_token& stop,
                           const std::function<void(std::uint64_t bytes)>& on_bytes) {
  SORTIE_ASSIGN_OR_RETURN(const ShardBytes shard, ShardBytes::open(path));
  SORTIE_ASSIGN_OR_RETURN(const SafetensorsHeader header, shard.header());
  Sha256 sum;
  std::vector<std::byte> buffer(std::min<std::uint64_t>(shard.size(), kReadAtOnce));
  for (std::uint64_t at = 0; at < shard.size();) {
    if (stop.stop_requested())
      return fail(ErrorCode::interrupted, fmt::format("{}: not read to its end", path.string()));
    const auto block =
        std::span(buffer).first(std::min<std::uint64_t>(shard.size() - at, buffer.size()));
    SORTIE_TRY(shard.read(at, block));
    sum.update(block);
    at += block.size();
    on_bytes(block.size());
  }
  if (const std::string hash = sum.finish_hex(); hash != manifest.shards[index].sha256)
    return broken(path, fmt::format("SHA-256 is {}, the manifest says {}; the file was changed",
                                    hash, manifest.shards[index].sha256));
  std::map<std::string_view, const TensorEntry*> by_name;
  for (const TensorEntry& entry : header.tensors) by_name.emplace(entry.name, &entry);
  for (const auto& [name, tensor] : manifest.tensors)
    for (const Manifest::PlacedPiece& placed : tensor.pieces) {
      if (placed.shard != index) continue;
      const auto found = by_name.find(placed.key);
      if (found == by_name.end() || found->second->type != tensor.type ||
          found->second->shape != placed.piece.local_shape())
        return broken(path,
                      fmt::format("tensor {} is missing or not as the manifest says", placed.key));
    }
  return {};
}

}  // namespace

std::string commit_text(std::string_view manifest_sha256) {
  return fmt::format("sortie-checkpoint 1\nsha256 {} {}\n", manifest_sha256, kManifestFile);
}

Result<Manifest> check_checkpoint(const fs::path& folder, CheckDepth depth,
                                  const std::stop_token& stop, const OnProgress& progress) {
  SORTIE_ASSIGN_OR_RETURN(const std::string commit, read_part(folder, kCommitFile, 4096));
  SORTIE_ASSIGN_OR_RETURN(const std::string text, read_part(folder, kManifestFile, kMaxManifest));
  if (commit != commit_text(sha256_hex(text)))
    return broken(folder, fmt::format("{} does not match {}", kCommitFile, kManifestFile));
  SORTIE_ASSIGN_OR_RETURN(Manifest manifest,
                          parse_manifest(text, (folder / kManifestFile).string()));
  WorkProgress work{.stage = "checking the checkpoint"};
  for (const auto& shard : manifest.shards) work.total += shard.bytes;
  if (depth == CheckDepth::files)
    for (const auto& file : manifest.files) work.total += file.bytes;
  const auto on_bytes = [&](std::uint64_t bytes) {
    work.done += bytes;
    if (progress) progress(work);
  };
  for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
    const fs::path path = folder / manifest.shards[i].file;
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(path, error);
    if (error) return broken(path, error.message());
    if (bytes != manifest.shards[i].bytes)
      return broken(
          path, fmt::format("has {} bytes, the manifest says {}", bytes, manifest.shards[i].bytes));
    if (depth != CheckDepth::sizes)
      SORTIE_TRY(check_shard_bytes(path, manifest, i, stop, on_bytes));
  }
  if (depth == CheckDepth::files) SORTIE_TRY(check_extra_files(manifest, folder, on_bytes));
  return manifest;
}

}  // namespace sortie::trainer
