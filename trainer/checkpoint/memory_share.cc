#include "trainer/checkpoint/memory_share.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "common/base/atomic_file.h"
#include "common/base/json_text.h"
#include "common/base/log.h"
#include "trainer/checkpoint/file_ops.h"
#include "trainer/checkpoint/lineage.h"
#include "trainer/checkpoint/small_file.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kData = ".data", kSeal = ".seal", kHalfWritten = ".seal-";
constexpr std::string_view kFirstLine = "sortie-memory 1 sha256 ";
constexpr std::size_t kMaxSeal = std::size_t{1} << 28;

std::optional<ShareName> share_name(std::string_view text) {
  ShareName name;
  int length = 0;
  const std::string copy(text);
  if (std::sscanf(copy.c_str(), "share-%5zu-of-%5zu.%c%n", &name.index, &name.count, &name.slot,
                  &length) != 3)
    return std::nullopt;
  if (static_cast<std::size_t>(length) != text.size() || name.text() != text ||
      name.index >= name.count || (name.slot != 'a' && name.slot != 'b'))
    return std::nullopt;
  return name;
}

/// Returns the share that a file belongs to; nullopt for other files.
std::optional<ShareName> share_of_file(const std::string& file) {
  for (const std::string_view end : {kData, kSeal})
    if (file.ends_with(end))
      return share_name(std::string_view(file).substr(0, file.size() - end.size()));
  if (const std::size_t at = file.find(kHalfWritten); at != file.npos)
    return share_name(std::string_view(file).substr(0, at));
  return std::nullopt;
}

fs::path seal_path(const fs::path& folder, const ShareName& name) {
  return folder / (name.text() + std::string(kSeal));
}

Result<SealedShare> read_seal(const fs::path& path, const ShareName& name) {
  SORTIE_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxSeal));
  const auto broken = [&](std::string_view what) {
    return fail(ErrorCode::checkpoint, fmt::format("{}: {}", path.string(), what));
  };
  const std::size_t end = text.find('\n');
  if (end == text.npos) return broken("is no seal of a share");
  const std::string_view body = std::string_view(text).substr(end + 1);
  if (std::string_view(text).substr(0, end) != fmt::format("{}{}", kFirstLine, sha256_hex(body)))
    return broken("its hash does not match its content");
  const auto root = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  const auto string = [&](const char* key) -> std::string {
    const auto at = root.find(key);
    return at != root.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  if (!root.is_object() || !root.contains("attempt") || !root["attempt"].is_number_integer())
    return broken("is no seal of a share");
  SealedShare share{.name = name};
  share.attempt = root["attempt"].get<std::int64_t>();
  SORTIE_ASSIGN_OR_RETURN(share.manifest, parse_manifest(string("manifest"), path.string()));
  SORTIE_ASSIGN_OR_RETURN(share.shard, parse_shard_info(string("shard")));
  return share;
}

/// Allocates the pages of the file, so that later writes to them cannot fail.
Result<> reserve_pages(const Fd& file, std::uint64_t bytes, const fs::path& path) {
  int error = 0;
  do error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes));
  while (error == EINTR);
  if (error == 0) return {};
  return std::unexpected(
      os_error(error, fmt::format("take {} bytes for {}", bytes, path.string()), ErrorCode::io));
}

}  // namespace

std::string ShareName::text() const {
  return fmt::format("share-{:05}-of-{:05}.{}", index, count, slot);
}

fs::path share_data_path(const fs::path& folder, const ShareName& name) {
  return folder / (name.text() + std::string(kData));
}

ShareMemory::ShareMemory(ShareMemory&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::move(other.file_)),
      bytes_(std::exchange(other.bytes_, {})),
      release_(std::exchange(other.release_, nullptr)) {}

ShareMemory& ShareMemory::operator=(ShareMemory&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(file_, other.file_);
  std::swap(bytes_, other.bytes_);
  std::swap(release_, other.release_);
  return *this;
}

ShareMemory::~ShareMemory() {
  if (bytes_.empty()) return;
  if (release_) release_(bytes_);
  ::munmap(bytes_.data(), bytes_.size());
}

Result<ShareMemory> ShareMemory::take(const fs::path& folder, const ShareName& name,
                                      std::uint64_t bytes) {
  ShareMemory memory;
  memory.path_ = share_data_path(folder, name);
  const std::string& path = memory.path_.native();
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
  memory.file_.reset(::open(path.c_str(), kFlags | O_CREAT, 0600));
  struct stat info {};
  if (!memory.file_ || ::fstat(memory.file_.get(), &info) != 0)
    return std::unexpected(os_error(errno, "open " + path));
  if (static_cast<std::uint64_t>(info.st_size) != bytes && ::ftruncate(memory.file_.get(), 0) != 0)
    return std::unexpected(os_error(errno, "truncate " + path));
  if (bytes == 0) return memory;
  if (auto reserved = reserve_pages(memory.file_, bytes, memory.path_); !reserved) {
    (void)::unlink(path.c_str());  // a part of the pages is useless
    return std::unexpected(std::move(reserved).error());
  }
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                              memory.file_.get(), 0);
  if (mapped == MAP_FAILED) return std::unexpected(os_error(errno, "map " + path));
  memory.bytes_ = {static_cast<std::byte*>(mapped), static_cast<std::size_t>(bytes)};
  return memory;
}

bool ShareMemory::is_named() const {
  struct stat open {
  }, named{};
  return file_ && ::fstat(file_.get(), &open) == 0 && ::stat(path_.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

Result<> seal_share(const fs::path& folder, const SealedShare& share) {
  const nlohmann::ordered_json root = {{"attempt", share.attempt},
                                       {"manifest", to_json(share.manifest)},
                                       {"shard", serialize(share.shard)}};
  const std::string body = json_text(root);
  const fs::path path = seal_path(folder, share.name);
  // A unique name: a process that was killed here may have left such a file.
  const fs::path written =
      folder / fmt::format("{}{}{}", share.name.text(), kHalfWritten, new_lineage());
  SORTIE_TRY(
      write_small_file(written, fmt::format("{}{}\n{}", kFirstLine, sha256_hex(body), body)));
  return file_ops::rename_path(written, path);
}

Result<> unseal_share(const fs::path& folder, const ShareName& name) {
  const fs::path path = seal_path(folder, name);
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return {};
  return std::unexpected(os_error(errno, "remove " + path.string()));
}

std::vector<SealedShare> sealed_shares(const fs::path& folder, const std::string& run_id) {
  std::vector<SealedShare> shares;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string file = at->path().filename().string();
    const std::optional<ShareName> name = share_of_file(file);
    if (!name || !file.ends_with(kSeal)) continue;
    Result<SealedShare> share = read_seal(at->path(), *name);
    if (!share)
      log::warning("a share in memory is passed over: {}", share.error().message);
    else if (share->manifest.run_id == run_id)
      shares.push_back(std::move(*share));
  }
  std::ranges::sort(shares, {}, &SealedShare::name);
  return shares;
}

Result<> remove_shares_but(const fs::path& folder, const std::vector<ShareName>& kept) {
  std::vector<fs::path> seals, others;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string file = at->path().filename().string();
    const std::optional<ShareName> name = share_of_file(file);
    if (!name) continue;
    const bool half = file.find(kHalfWritten) != file.npos;
    if (!half && std::ranges::find(kept, *name) != kept.end()) continue;
    (file.ends_with(kSeal) ? seals : others).push_back(at->path());
  }
  if (error && error != std::errc::no_such_file_or_directory)
    return fail(ErrorCode::io, fmt::format("list {}: {}", folder.string(), error.message()));
  seals.insert(seals.end(), others.begin(), others.end());  // seals first: they vouch for bytes
  for (const fs::path& path : seals)
    if (::unlink(path.c_str()) != 0 && errno != ENOENT)
      return std::unexpected(os_error(errno, "remove " + path.string()));
  return {};
}

}  // namespace sortie::trainer
