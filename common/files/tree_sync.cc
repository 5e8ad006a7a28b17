#include "common/files/tree_sync.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include "common/files/tree_file.h"

namespace sortie::files {
namespace {

/// Duration of one step of waiting for syncfs(): short, because the thread may serve many hosts.
constexpr std::chrono::milliseconds kWait{1};
constexpr unsigned kXfs = 0x58465342;  // not in linux/magic.h
/// File systems whose syncfs() is known to write as much as fsync(); on network file systems it may
/// write less.
constexpr std::array<unsigned, 4> kLocal = {EXT4_SUPER_MAGIC, kXfs, BTRFS_SUPER_MAGIC,
                                            F2FS_SUPER_MAGIC};

/// Before Linux 5.8, syncfs() succeeds if the disk has failed.
bool kernel_reports_failures() {
  utsname system{};
  int major = 0, minor = 0;
  return ::uname(&system) == 0 && std::sscanf(system.release, "%d.%d", &major, &minor) == 2 &&
         (major > 5 || (major == 5 && minor >= 8));
}

}  // namespace

bool TreeSync::replaces_fsync(int tree) {
  static const bool reports = kernel_reports_failures();
  struct statfs info {};
  return reports && ::fstatfs(tree, &info) == 0 &&
         std::ranges::find(kLocal, static_cast<unsigned>(info.f_type)) != kLocal.end();
}

void TreeSync::start(int tree) {
  // If no thread can be started (a limit of the user), syncfs() runs in wait().
  call_ = std::async([tree] { return ::syncfs(tree) == 0 ? 0 : errno; });
}

Result<bool> TreeSync::wait() {
  if (call_.wait_for(kWait) == std::future_status::timeout) return false;
  if (const int error = call_.get(); error != 0) return std::unexpected(os_error(error, "syncfs"));
  return true;
}

Result<bool> TreeSync::sync_file(int tree, int file) {
  if (call_.valid()) {
    SORTIE_ASSIGN_OR_RETURN(whole_, wait());
    return false;
  }
  struct stat info {};
  if (::fstat(file, &info) != 0) return std::unexpected(os_error(errno, "stat"));
  if (covers(info.st_dev)) return true;
  if (!whole_ && spent_ >= limit_ && replaces_fsync(tree)) {
    struct stat folder {};
    if (::fstat(tree, &folder) != 0) return std::unexpected(os_error(errno, "stat"));
    device_ = folder.st_dev;
    start(tree);
    return false;
  }
  const auto begun = std::chrono::steady_clock::now();
  if (::fsync(file) != 0) return std::unexpected(os_error(errno, "fsync"));
  spent_ += std::chrono::steady_clock::now() - begun;
  return true;
}

Result<> TreeSync::sync_folder(int parent, std::string_view name) {
  const auto info = look_at(parent, name);
  if (info && covers(info->st_dev)) return {};
  return files::sync_folder(parent, name);
}

Result<bool> TreeSync::sync_tree(int tree) {
  if (!whole_) {
    SORTIE_TRY(files::sync_folder(tree, "."));
    return true;
  }
  if (!call_.valid()) start(tree);
  return wait();
}

}  // namespace sortie::files
