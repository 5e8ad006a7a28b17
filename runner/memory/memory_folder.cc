#include "runner/memory/memory_folder.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <functional>

#include "common/base/atomic_file.h"
#include "common/base/fnv1a.h"
#include "common/base/private_folder.h"

namespace sortie::runner {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlace = "/dev/shm";
constexpr std::string_view kPrefix = "memory-", kGone = "gone-";
constexpr const char* kHolderFile = "holder";
constexpr int kMemoryFolderFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
/// Ten seconds, to wait for a removal of the folder on a busy machine.
constexpr int kTakeTries = 1000;
constexpr useconds_t kTakePause = 10000;
/// Limits the attempts to create a folder that others remove when it is empty.
constexpr int kMakeTries = 100;

std::string base_path() {
  return fmt::format("{}/sortie-{}", kPlace, ::geteuid());
}

std::string run_prefix(const std::string& run_id) {
  return fmt::format("{}{}-", kPrefix, run_id);
}

/// One run id may be a prefix of another, so what follows must be exactly the hash of a host.
bool is_folder_of_run(std::string_view name, const std::string& run_id) {
  const std::string prefix = run_prefix(run_id);
  constexpr std::size_t kHashDigits = 16;
  return name.starts_with(prefix) && name.size() == prefix.size() + kHashDigits &&
         name.find('-', prefix.size()) == name.npos;
}

Result<std::string> make_memory_base() {
  struct statfs info {};
  if (::statfs(kPlace, &info) != 0 || info.f_type != TMPFS_MAGIC)
    return fail(ErrorCode::io, fmt::format("{}: no memory file system is mounted there; mount a "
                                           "tmpfs, or set trainer.memory_checkpoint_interval = 0",
                                           kPlace));
  std::string base = base_path();
  for (int tries = 0;; ++tries) {
    if (::mkdir(base.c_str(), 0700) != 0 && errno != EEXIST)
      return std::unexpected(os_error(errno, base));
    struct stat found {};
    // Any user can create files in /dev/shm: the path may be another user's link.
    const int looked = ::lstat(base.c_str(), &found);
    if (looked == 0 && is_private_folder(found)) return base;
    // Since our mkdir, another holder may have removed it together with its last folder.
    const bool gone = looked != 0 && errno == ENOENT;
    if (!gone || tries == kMakeTries)
      return fail(ErrorCode::io, base + ": not a private folder of this user; remove it");
  }
}

bool names_same(const Fd& open, const std::string& path) {
  struct stat a {
  }, b{};
  return open && ::fstat(open.get(), &a) == 0 && ::lstat(path.c_str(), &b) == 0 &&
         a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/// Renames the folder first, so that a process that still writes does not create it again.
void remove_folder(const std::string& path) {
  const fs::path folder = path;
  const std::string gone = fmt::format("{}/{}{}-{}", folder.parent_path().native(), kGone,
                                       folder.filename().native(), ::getpid());
  const bool moved = ::rename(path.c_str(), gone.c_str()) == 0;
  std::error_code ignored;
  fs::remove_all(moved ? gone : path, ignored);
  ::rmdir(folder.parent_path().c_str());  // succeeds if it was the last one
}

/// Calls f(path) for each memory folder on this host whose name satisfies `wanted`.
void for_each_folder(const std::function<bool(std::string_view)>& wanted,
                     const std::function<void(const std::string&)>& f) {
  if (!is_private_folder(base_path())) return;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(base_path(), error))
    if (wanted(entry.path().filename().native())) f(entry.path().native());
}

/// Removes the folder if no living process holds it. If that can not be determined, it counts as
/// held.
bool remove_if_nobody_holds(const std::string& path) {
  const Fd folder(::open(path.c_str(), kMemoryFolderFlags));
  if (!folder || ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0 || !names_same(folder, path))
    return false;
  remove_folder(path);
  return true;
}

/// Returns a unique token that begins with the epoch.
std::string new_token(std::uint32_t epoch) {
  static unsigned number = 0;
  struct timespec now {};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return fmt::format("{} {}.{}.{}.{}", epoch, ::getpid(), now.tv_sec, now.tv_nsec, ++number);
}

/// Two launchers that check at the same time both continue. The holder whose token is replaced then
/// finds that the folder is not its own, and its launcher connects again.
Result<> check_epoch(const std::string& path, std::uint32_t epoch) {
  const Result<std::string> token = read_file(path + '/' + kHolderFile, 4096);
  if (!token) return {};  // it was never held
  std::uint32_t theirs = 0;
  const auto [end, error] = std::from_chars(token->data(), token->data() + token->size(), theirs);
  if (error != std::errc{} || theirs <= epoch) return {};
  return fail(ErrorCode::runner,
              fmt::format("{}: another launcher has adopted this run (epoch {} is below {})", path,
                          epoch, theirs));
}

}  // namespace

std::string memory_folder_path(const std::string& run_id, const std::string& host) {
  return fmt::format("{}/{}{:016x}", base_path(), run_prefix(run_id), fnv1a_64(host));
}

Result<MemoryHolder> MemoryHolder::take(const std::string& run_id, const std::string& host,
                                        std::uint32_t epoch) {
  SORTIE_TRY(make_memory_base());
  MemoryHolder holder;
  holder.path_ = memory_folder_path(run_id, host);
  holder.token_ = new_token(epoch);
  const std::string& path = holder.path_;
  const auto is_other = [&](std::string_view name) {
    return (name.starts_with(kPrefix) || name.starts_with(kGone)) &&
           name != fs::path(path).filename().native();
  };
  for_each_folder(is_other, [](const std::string& other) { remove_if_nobody_holds(other); });
  for (int tries = 0;; ++tries) {
    // The base is removed together with the last folder in it, so create it again.
    SORTIE_TRY(make_memory_base());
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST && errno != ENOENT)
      return std::unexpected(os_error(errno, path));
    holder.folder_.reset(::open(path.c_str(), kMemoryFolderFlags));
    if (holder.folder_ && ::flock(holder.folder_.get(), LOCK_SH | LOCK_NB) == 0 &&
        names_same(holder.folder_, path))
      break;
    if (tries == kTakeTries)
      return fail(ErrorCode::io, path + ": can not be made or locked; is it being removed?");
    ::usleep(kTakePause);
  }
  SORTIE_TRY(check_epoch(path, epoch));
  SORTIE_TRY(write_file_atomic(path + '/' + kHolderFile, holder.token_, 0600));
  return holder;
}

bool MemoryHolder::is_ours() const {
  const Result<std::string> text = read_file(path_ + '/' + kHolderFile, 4096);
  return text && *text == token_ && names_same(folder_, path_);
}

void MemoryHolder::remove() {
  if (is_ours()) remove_folder(path_);
  folder_.reset();
}

void remove_unheld_memory(const std::string& run_id) {
  for_each_folder([&](std::string_view name) { return is_folder_of_run(name, run_id); },
                  [](const std::string& path) { remove_if_nobody_holds(path); });
}

bool is_memory_of_run(std::string_view path, const std::string& run_id) {
  const std::string base = base_path() + '/';
  if (!path.starts_with(base)) return false;
  path.remove_prefix(base.size());
  return is_folder_of_run(path.substr(0, path.find_first_of("/ ")), run_id);
}

Result<> open_memory_to_others(const std::string& folder) {
  const Fd open(::open(folder.c_str(), kMemoryFolderFlags));
  if (!open || ::fchmod(open.get(), 0777) != 0) return std::unexpected(os_error(errno, folder));
  return {};
}

}  // namespace sortie::runner
