#include "runner/cleanup/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "common/base/digits.h"

namespace sortie::runner {
namespace {

namespace fs = std::filesystem;

constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr int kFileFlags = O_RDWR | O_NOFOLLOW | O_CLOEXEC;

/// Blocks: a process that only checks the folder holds it exclusively for a moment.
bool lock_shared(const Fd& fd) {
  int result = 0;
  while ((result = ::flock(fd.get(), LOCK_SH)) != 0 && errno == EINTR) {
  }
  return result == 0;
}

bool lock_alone(const Fd& fd) {
  return ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
}

/// Whether the process is certainly in another pid namespace. `process`: "/proc/PID".
bool is_elsewhere(const std::string& process) {
  std::error_code error, own_error;
  const fs::path its = fs::read_symlink(process + "/ns/pid", error);
  const fs::path own = fs::read_symlink("/proc/self/ns/pid", own_error);
  return !error && !own_error && its != own;
}

/// Checks all other processes of this user, or only those in this pid namespace. Also returns true
/// if /proc can not be read.
bool some_process_has_open(const std::string& folder, bool only_here = false) {
  const auto inside = [&](std::string_view path) {
    return path.starts_with(folder) &&
           (path.size() == folder.size() || path[folder.size()] == '/' ||
            path[folder.size()] == ' ');  // " (deleted)"
  };
  const std::string own = "/proc/" + std::to_string(::getpid());
  std::error_code error;
  fs::directory_iterator entry("/proc", error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string& process = entry->path().native();
    struct stat info {};
    if (!all_digits(entry->path().filename().native()) || process == own ||
        ::stat(process.c_str(), &info) != 0 || info.st_uid != ::geteuid())
      continue;
    if (has_open(process, inside) && !(only_here && is_elsewhere(process))) return true;
  }
  return static_cast<bool>(error);
}

}  // namespace

Result<FolderLock> FolderLock::take(const std::string& folder) {
  FolderLock lock;
  lock.folder_.reset(::open(folder.c_str(), kFolderFlags));
  if (!lock.folder_ || !lock_shared(lock.folder_)) return std::unexpected(os_error(errno, folder));
  const std::string file = folder + "/lock";
  lock.file_.reset(::open(file.c_str(), kFileFlags | O_CREAT, 0600));
  if (!lock.file_ || !lock_shared(lock.file_)) return std::unexpected(os_error(errno, file));
  return lock;
}

bool FolderLock::is_last() const {
  return lock_alone(folder_) && lock_alone(file_);
}

void FolderLock::let_go() const {
  ::flock(folder_.get(), LOCK_UN);
  ::flock(file_.get(), LOCK_UN);
}

std::optional<FolderLock> hold_folder(const std::string& folder) {
  Result<FolderLock> lock = FolderLock::take(folder);
  if (!lock) return std::nullopt;
  return std::move(*lock);
}

bool may_be_held(const std::string& folder) {
  const Fd opened(::open(folder.c_str(), kFolderFlags));
  if (!opened)
    return (errno != ENOENT && errno != ENOTDIR && errno != ELOOP) || some_process_has_open(folder);
  if (!lock_alone(opened)) return true;
  const Fd file(::open((folder + "/lock").c_str(), kFileFlags));
  if (!file) return errno != ENOENT || some_process_has_open(folder);
  return !lock_alone(file);
}

bool may_be_held_here(const std::string& folder) {
  return some_process_has_open(folder, true);
}

bool has_open(const std::string& process,
              const std::function<bool(std::string_view path)>& wanted) {
  std::error_code error;
  fs::directory_iterator entry(process + "/fd", error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code gone;
    if (wanted(fs::read_symlink(entry->path(), gone).native())) return true;
  }
  return false;
}

}  // namespace sortie::runner
