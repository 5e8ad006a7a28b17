#include "runner/files/stage_cache.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>
#include <chrono>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "common/base/atomic_file.h"
#include "common/base/boot_clock.h"
#include "common/base/file_lock.h"
#include "common/base/fnv1a.h"
#include "common/base/log.h"
#include "runner/files/user_path.h"

namespace sortie::runner {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKeyLength = 64;
/// Modification time of every staged file, so that a later write is noticed.
constexpr time_t kStagedTime = 1;
/// A missing tree that is in use for this long was removed. For a shorter time others that try as
/// well may hold the lock, after a runner that filled the tree was killed.
constexpr std::chrono::seconds kRemovedLimit{15};
/// Without locks, a part that has not changed for this long is abandoned.
constexpr time_t kOldPartSeconds = 7 * 24 * 3600;

bool is_key(const std::string& text) {
  return text.size() == kKeyLength &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Fd open_lock(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  return fd;
}

/// Takes the lock only if the file still has that name: a pruner may have removed it meanwhile.
FileLock take_lock(const Fd& fd, int kind, const std::string& path) {
  if (!fd) return FileLock::failed;
  const FileLock lock = try_lock_file(fd.get(), kind);
  if (lock != FileLock::taken) return lock;
  struct stat held {
  }, named{};
  const bool same = ::fstat(fd.get(), &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
                    held.st_ino == named.st_ino;
  return same ? FileLock::taken : FileLock::held;
}

/// Unique to this process, even if hosts or containers share the folder.
std::string own_letters() {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  return fmt::format("{:016x}", fnv1a_64(fmt::format("{} {} {}", host, ::getpid(), boot_ms())));
}

}  // namespace

Result<StageCache> StageCache::open(const std::string& key) {
  if (!is_key(key)) return fail(ErrorCode::protocol, "a staged tree without a hash");
  StageCache cache;
  SORTIE_ASSIGN_OR_RETURN(const std::string home, user_path("~"));
  cache.base_ = home + "/.cache/sortie/stage";
  cache.key_ = key;
  SORTIE_ASSIGN_OR_RETURN(const files::Folder base, files::Folder::open(cache.base_, 0700));
  struct stat info {};
  if (::fstat(base.fd(), &info) != 0 || info.st_uid != ::geteuid())
    return fail(ErrorCode::io, cache.base_ + ": not a folder of this user; remove it");
  if ((info.st_mode & 077) != 0 && ::fchmod(base.fd(), 0700) != 0)
    return std::unexpected(os_error(errno, cache.base_));
  return cache;
}

Result<bool> StageCache::try_lock() {
  const std::string path = folder() + ".lock";
  lock_ = open_lock(path);
  if (!lock_) return std::unexpected(os_error(errno, path));
  FileLock lock = take_lock(lock_, LOCK_EX, path);
  if (lock == FileLock::absent && letters_.empty()) letters_ = own_letters();
  exclusive_ = lock == FileLock::taken || lock == FileLock::absent;
  if (exclusive_) return true;
  if (lock == FileLock::held) lock = take_lock(lock_, LOCK_SH, path);
  if (lock == FileLock::failed) return std::unexpected(os_error(errno, "lock " + path));
  struct stat info {};
  if (lock == FileLock::taken && ::stat(folder().c_str(), &info) == 0) return true;
  lock_.reset();  // others that wait may need it exclusively
  const auto now = std::chrono::steady_clock::now();
  if (lock != FileLock::taken) removed_since_.reset();
  if (lock == FileLock::taken && !removed_since_) removed_since_ = now;
  if (!removed_since_ || now - *removed_since_ < kRemovedLimit) return false;
  return fail(ErrorCode::io,
              fmt::format("{}: was removed while another job uses it; end that job: `fuser "
                          "{}.lock` shows its runner",
                          folder(), folder()));
}

std::string StageCache::holder_hint() const {
  return fmt::format(
      "staging waits for another process that fills {}; see who does with `fuser {}.lock`",
      folder(), folder());
}

std::string StageCache::part_folder() const {
  return folder() + (letters_.empty() ? ".part" : ".part-" + letters_);
}

bool StageCache::is_whole(const std::vector<wire::FileEntry>& entries) const {
  return std::ranges::all_of(entries, [&](const wire::FileEntry& entry) {
    struct stat now {};
    if (::lstat((folder() + "/" + entry.path).c_str(), &now) != 0) return false;
    if (entry.kind == wire::FileKind::folder) return S_ISDIR(now.st_mode) != 0;
    if (entry.kind == wire::FileKind::symlink) return S_ISLNK(now.st_mode) != 0;
    return S_ISREG(now.st_mode) && static_cast<std::uint64_t>(now.st_size) == entry.size &&
           (now.st_mode & 07777) == entry.mode && now.st_mtime == kStagedTime;
  });
}

bool StageCache::ready(const std::vector<wire::FileEntry>& entries) {
  struct stat info {};
  if (::lstat(folder().c_str(), &info) != 0) return false;
  if (is_whole(entries)) return true;
  if (!exclusive_) return false;
  std::error_code ignored;
  fs::remove_all(part_folder(), ignored);
  fs::rename(folder(), part_folder(), ignored);
  return false;
}

Result<> StageCache::note_size(std::uint64_t bytes) const {
  const std::string size = fmt::format("{}\n", bytes);
  if (::pwrite(lock_.get(), size.data(), size.size(), 0) < 0)
    return std::unexpected(os_error(errno, folder() + ".lock"));
  return {};
}

Result<files::Folder> StageCache::part(std::uint64_t bytes) const {
  if (!exclusive_)
    return fail(ErrorCode::io,
                fmt::format("{}: was changed while another job uses it; end that job: `fuser "
                            "{}.lock` shows its runner",
                            folder(), folder()));
  SORTIE_TRY(note_size(bytes));
  return files::Folder::open(part_folder(), 0700);
}

Result<> StageCache::install(const std::vector<wire::FileEntry>& entries) {
  const std::string part = part_folder();
  for (const wire::FileEntry& entry : entries) {
    if (entry.kind != wire::FileKind::file) continue;
    const std::array<timespec, 2> times = {timespec{kStagedTime, 0}, timespec{kStagedTime, 0}};
    const std::string path = part + "/" + entry.path;
    if (::utimensat(AT_FDCWD, path.c_str(), times.data(), AT_SYMLINK_NOFOLLOW) != 0)
      return std::unexpected(os_error(errno, path));
  }
  if (::rename(part.c_str(), folder().c_str()) != 0) {
    const int error = errno;
    const bool there = error == EEXIST || error == ENOTEMPTY;
    if (letters_.empty() || !there || !is_whole(entries))
      return std::unexpected(os_error(error, folder()));
    std::error_code ignored;
    fs::remove_all(part, ignored);
  }
  return sync_path(base_);
}

Result<> StageCache::use() {
  if (::futimens(lock_.get(), nullptr) != 0)
    return std::unexpected(os_error(errno, folder() + ".lock"));
  if (letters_.empty() && ::flock(lock_.get(), LOCK_SH) != 0)
    return std::unexpected(os_error(errno, folder() + ".lock"));
  exclusive_ = false;
  return {};
}

/// Removes parts of killed stagings, where locks can not show that their owners are dead.
void StageCache::remove_old_parts() const {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(base_, error)) {
    const std::string name = entry.path().filename().string();
    struct stat info {};
    if (name.size() <= kKeyLength || !is_key(name.substr(0, kKeyLength)) ||
        !name.substr(kKeyLength).starts_with(".part-") ||
        ::lstat(entry.path().c_str(), &info) != 0 ||
        info.st_ctime > ::time(nullptr) - kOldPartSeconds)
      continue;
    std::error_code ignored;
    fs::remove_all(entry.path(), ignored);
  }
}

void StageCache::prune(std::uint64_t limit) const {
  if (!letters_.empty()) return remove_old_parts();
  struct Tree {
    std::string key;
    std::uint64_t bytes = 0;
    timespec used{};
  };
  std::vector<Tree> trees;
  std::uint64_t total = 0;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(base_, error)) {
    const std::string name = file.path().filename().string();
    struct stat info {};
    if (!name.ends_with(".lock") || !is_key(name.substr(0, name.size() - 5)) ||
        ::lstat(file.path().c_str(), &info) != 0)
      continue;
    Tree tree{name.substr(0, name.size() - 5), 0, info.st_mtim};
    if (const auto text = read_file(file.path(), 64))
      tree.bytes = std::strtoull(text->c_str(), nullptr, 10);
    total += tree.bytes;
    trees.push_back(std::move(tree));
  }
  std::ranges::sort(trees, [](const Tree& a, const Tree& b) {
    return a.used.tv_sec != b.used.tv_sec ? a.used.tv_sec < b.used.tv_sec
                                          : a.used.tv_nsec < b.used.tv_nsec;
  });
  for (const Tree& tree : trees) {
    if (total <= limit) return;
    const std::string path = base_ + "/" + tree.key;
    const Fd lock = open_lock(path + ".lock");
    if (tree.key == key_ || take_lock(lock, LOCK_EX, path + ".lock") != FileLock::taken) continue;
    log::info("stage cache: removes {} ({} bytes)", tree.key, tree.bytes);
    // Rename first: an incomplete tree must not be found under its final name.
    fs::remove_all(path + ".part", error);
    fs::rename(path, path + ".part", error);
    fs::remove_all(path + ".part", error);
    fs::remove(path + ".lock", error);
    total -= tree.bytes;
  }
}

}  // namespace sortie::runner
