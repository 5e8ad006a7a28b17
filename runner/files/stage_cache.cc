#include "runner/files/stage_cache.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>
#include <chrono>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>

#include "common/base/atomic_file.h"
#include "common/base/boot_clock.h"
#include "common/base/fnv1a.h"
#include "common/base/host_name.h"
#include "runner/files/stage_files.h"
#include "runner/files/user_path.h"

namespace sortie::runner {
namespace {

namespace fs = std::filesystem;

/// Modification time of every staged file, so that a later write is noticed.
constexpr time_t kStagedTime = 1;
/// A missing tree that is in use for this long was removed. For a shorter time others that try as
/// well may hold the lock, after a runner that filled the tree was killed.
constexpr std::chrono::seconds kRemovedLimit{15};

/// Room for a lock and for names.
constexpr std::uint64_t kLeastRoom = 1u << 20;
/// Allocated for a file: a multiple of this, and as much for its inode.
constexpr std::uint64_t kBlock = 4096;

/// Unique to this process, even if hosts or containers share the folder.
std::string own_letters() {
  return fmt::format("{:016x}",
                     fnv1a_64(fmt::format("{} {} {}", host_name(), ::getpid(), boot_ms())));
}

}  // namespace

Result<StageCache> StageCache::open(const std::string& key) {
  if (!is_stage_key(key)) return fail(ErrorCode::protocol, "a staged tree without a hash");
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
  lock_ = open_stage_lock(path);
  if (!lock_) return std::unexpected(os_error(errno, path));
  FileLock lock = take_stage_lock(lock_, LOCK_EX, path);
  if (lock == FileLock::absent && letters_.empty()) letters_ = own_letters();
  exclusive_ = lock == FileLock::taken || lock == FileLock::absent;
  if (exclusive_) return true;
  if (lock == FileLock::held) lock = take_stage_lock(lock_, LOCK_SH, path);
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

/// Compares the next entries with the tree; nullopt if some are left.
std::optional<bool> StageCache::compare_some(const std::vector<wire::FileEntry>& entries) {
  const auto same = [&](const wire::FileEntry& entry) {
    struct stat now {};
    if (::lstat((folder() + "/" + entry.path).c_str(), &now) != 0) return false;
    if (entry.kind == wire::FileKind::folder) return S_ISDIR(now.st_mode) != 0;
    if (entry.kind == wire::FileKind::symlink) return S_ISLNK(now.st_mode) != 0;
    return S_ISREG(now.st_mode) && static_cast<std::uint64_t>(now.st_size) == entry.size &&
           (now.st_mode & 07777) == entry.mode && now.st_mtime == kStagedTime;
  };
  const std::size_t end = std::min(entries.size(), compared_ + kStagedAtOnce);
  for (; compared_ < end; ++compared_)
    if (!same(entries[compared_])) return false;
  return compared_ < entries.size() ? std::nullopt : std::optional(true);
}

std::optional<bool> StageCache::ready(const std::vector<wire::FileEntry>& entries) {
  if (!damaged_) {
    struct stat info {};
    if (compared_ == 0 && ::lstat(folder().c_str(), &info) != 0) return false;
    if (exclusive_ && letters_.empty()) {
      if (!extras_) extras_.emplace(folder(), entries);
      if (compared_ == 0 && !extras_->step()) return std::nullopt;
    }
    const std::optional<bool> whole = compare_some(entries);
    if (!whole || *whole || !exclusive_) return whole;
    damaged_ = true;
  }
  if (!remove_some(part_folder())) return std::nullopt;
  std::error_code ignored;
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

/// Turns the part into the tree. Returns false if another runner's part has become it.
Result<bool> StageCache::rename_part() {
  if (::rename(part_folder().c_str(), folder().c_str()) == 0) return true;
  const int error = errno;
  const bool there = error == EEXIST || error == ENOTEMPTY;
  if (letters_.empty() || !there) return std::unexpected(os_error(error, folder()));
  return false;
}

Result<bool> StageCache::install(const std::vector<wire::FileEntry>& entries) {
  const std::string part = part_folder();
  const std::size_t end = std::min(entries.size(), dated_ + kStagedAtOnce);
  for (; dated_ < end; ++dated_) {
    const wire::FileEntry& entry = entries[dated_];
    if (entry.kind != wire::FileKind::file) continue;
    const std::array<timespec, 2> times = {timespec{kStagedTime, 0}, timespec{kStagedTime, 0}};
    const std::string path = part + "/" + entry.path;
    if (::utimensat(AT_FDCWD, path.c_str(), times.data(), AT_SYMLINK_NOFOLLOW) != 0)
      return std::unexpected(os_error(errno, path));
  }
  if (dated_ < entries.size()) return false;
  if (!replaced_) {
    SORTIE_ASSIGN_OR_RETURN(const bool ours, rename_part());
    replaced_ = !ours;
    compared_ = 0;
  }
  if (replaced_ && !is_same_) {
    const std::optional<bool> same = compare_some(entries);
    if (!same) return false;
    if (!*same) return std::unexpected(os_error(EEXIST, folder()));
    is_same_ = true;
  }
  if (replaced_ && !remove_some(part)) return false;
  SORTIE_TRY(sync_path(base_));
  return true;
}

Result<> StageCache::use() {
  // Ranks in containers may be of another user. On the host base_ keeps other users out.
  if (::chmod(folder().c_str(), 0755) != 0) return std::unexpected(os_error(errno, folder()));
  if (::futimens(lock_.get(), nullptr) != 0)
    return std::unexpected(os_error(errno, folder() + ".lock"));
  if (letters_.empty() && ::flock(lock_.get(), LOCK_SH) != 0)
    return std::unexpected(os_error(errno, folder() + ".lock"));
  exclusive_ = false;
  return {};
}

StagePruner StageCache::pruner(std::uint64_t limit) const {
  return letters_.empty() ? StagePruner::of_trees(base_, key_, limit)
                          : StagePruner::of_old_parts(base_);
}

StagePruner StageCache::room_pruner(const std::vector<wire::FileEntry>& entries) const {
  std::uint64_t room = kLeastRoom;
  for (const wire::FileEntry& entry : entries) room += (entry.size / kBlock + 2) * kBlock;
  return letters_.empty() ? StagePruner::for_room(base_, key_, room)
                          : StagePruner::of_old_parts(base_);
}

Error StageCache::with_advice(Error error) const {
  for (const int full : {ENOSPC, EDQUOT}) {
    const std::string reason = os_error(full, "").message;
    const std::size_t at = error.message.find(reason);
    if (at == std::string::npos) continue;
    // Replaces what follows about the file that is not complete: it is in the cache, too.
    error.message.resize(at + reason.size());
    error.message += fmt::format(
        "; free space there, or remove what earlier jobs have staged, while no job runs: rm -r {}",
        base_);
    break;
  }
  return error;
}

}  // namespace sortie::runner
