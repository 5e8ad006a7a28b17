#include "launcher/host/runner_hashes.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <optional>

#include "common/base/atomic_file.h"
#include "common/base/fd.h"
#include "common/base/hex.h"
#include "launcher/host/sha256.h"

namespace sortie::launcher {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kSha256Letters = 64, kXxh3Letters = 16, kMaxLine = 512;
/// Longer than the timestamp granularity of any file system.
constexpr std::time_t kSettled = 2;

/// Path of the cache file; empty if there is no place for it.
fs::path remembered_path() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache == '/')
    return fs::path(cache) / "sortie/runner-hashes";
  if (const char* home = std::getenv("HOME"); home && *home == '/')
    return fs::path(home) / ".cache/sortie/runner-hashes";
  return {};
}

std::string identity(const struct stat& info) {
  return fmt::format("{} {} {} {}.{:09} {}.{:09} ", info.st_dev, info.st_ino, info.st_size,
                     info.st_mtim.tv_sec, info.st_mtim.tv_nsec, info.st_ctim.tv_sec,
                     info.st_ctim.tv_nsec);
}

std::optional<RunnerHashes> remembered(const fs::path& path, const std::string& identity) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_uid != ::geteuid() || (info.st_mode & 022) != 0)
    return std::nullopt;
  char bytes[kMaxLine];
  const ssize_t count = ::read(file.get(), bytes, sizeof bytes);
  std::string_view line(bytes, count > 0 ? static_cast<std::size_t>(count) : 0);
  if (!line.starts_with(identity)) return std::nullopt;
  line.remove_prefix(identity.size());
  const bool whole = line.size() == kSha256Letters + 1 + kXxh3Letters + 1 && line.ends_with('\n') &&
                     line[kSha256Letters] == ' ';
  const std::string_view letters = "0123456789abcdef ";
  if (!whole || line.find_first_not_of(letters) != line.size() - 1) return std::nullopt;
  return RunnerHashes{std::string(line.substr(0, kSha256Letters)),
                      std::string(line.substr(kSha256Letters + 1, kXxh3Letters))};
}

void remember(const fs::path& path, const std::string& line) {
  ::mkdir(path.parent_path().parent_path().c_str(), 0700);
  ::mkdir(path.parent_path().c_str(), 0700);
  (void)write_file_atomic(path, line, 0600);  // on failure, the next command computes them again
}

}  // namespace

RunnerHashes hashes_of_runner(std::string_view bytes, const struct stat& info) {
  const fs::path path = remembered_path();
  const std::string of_file = identity(info);
  if (!path.empty())
    if (auto known = remembered(path, of_file)) return std::move(*known);
  RunnerHashes hashes{hex(sha256(bytes)),
                      fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()))};
  if (!path.empty() && std::time(nullptr) > info.st_ctim.tv_sec + kSettled)
    remember(path, fmt::format("{}{} {}\n", of_file, hashes.sha256, hashes.xxh3));
  return hashes;
}

}  // namespace sortie::launcher
