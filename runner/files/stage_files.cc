#include "runner/files/stage_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <system_error>

namespace sortie::runner {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKeyLength = 64;

enum class Removal { done, budget_used, failed };

Removal remove_within(const fs::path& path, std::size_t& budget) {
  std::error_code error;
  if (fs::symlink_status(path, error).type() == fs::file_type::directory) {
    for (const auto& entry : fs::directory_iterator(path, error))
      if (const Removal inner = remove_within(entry.path(), budget); inner != Removal::done)
        return inner;
    if (error) return Removal::failed;
  }
  if (budget == 0) return Removal::budget_used;
  --budget;
  fs::remove(path, error);
  return error ? Removal::failed : Removal::done;
}

}  // namespace

bool is_stage_key(std::string_view text) {
  return text.size() == kKeyLength && text.find_first_not_of("0123456789abcdef") == text.npos;
}

Fd open_stage_lock(const std::string& path) {
  return Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
}

FileLock take_stage_lock(const Fd& fd, int kind, const std::string& path) {
  if (!fd) return FileLock::failed;
  const FileLock lock = try_lock_file(fd.get(), kind);
  if (lock != FileLock::taken) return lock;
  struct stat held {
  }, named{};
  const bool same = ::fstat(fd.get(), &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
                    held.st_ino == named.st_ino;
  return same ? FileLock::taken : FileLock::held;
}

bool remove_some(const fs::path& tree) {
  std::size_t budget = kStagedAtOnce;
  return remove_within(tree, budget) != Removal::budget_used;
}

}  // namespace sortie::runner
