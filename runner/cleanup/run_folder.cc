#include "runner/cleanup/run_folder.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "common/base/atomic_file.h"
#include "common/base/digits.h"
#include "common/base/fnv1a.h"
#include "common/base/private_folder.h"
#include "runner/cleanup/shared_memory.h"

namespace sortie::runner {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxRunIdInName = 24;
/// Ten seconds: on a busy machine the lock's holder may be stalled for several seconds.
constexpr int kLockTries = 1000;
constexpr useconds_t kLockPause = 10000;
/// In a run folder: "UNTIL_MS RUN_ID" while no launcher is connected. The folder's name does not
/// have the whole id.
constexpr const char* kHeldFile = "held";
constexpr std::size_t kMaxHeldBytes = 4096;

Result<std::string> make_base() {
  const std::string base = run_folder_base();
  if (::mkdir(base.c_str(), 0700) != 0 && errno != EEXIST)
    return std::unexpected(os_error(errno, base));
  if (!is_private_folder(base))
    return fail(ErrorCode::io,
                base + ": not a private folder of this user; remove it or set XDG_RUNTIME_DIR");
  return base;
}

/// Waits for other runners that start. Error: the lock is not released within seconds.
Result<> lock_exclusively(const Fd& fd, const std::string& path) {
  if (!fd) return std::unexpected(os_error(errno, path));
  for (int tries = 0; ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0; ++tries) {
    if (tries == kLockTries) return std::unexpected(os_error(errno, path + " is held"));
    ::usleep(kLockPause);
  }
  return {};
}

std::string run_folder_prefix(const std::string& run_id) {
  std::string id = run_id;
  if (id.size() > kMaxRunIdInName) {
    id = fmt::format("{}-{:08x}", run_id.substr(0, kMaxRunIdInName - 9), fnv1a_32(run_id));
  }
  return id + '-';
}

/// All bases that runners of this user may use; which one depends on their environment.
std::vector<std::string> possible_bases() {
  std::vector<std::string> bases;
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  for (const std::string_view place :
       {std::string_view(runtime ? runtime : ""), std::string_view("/tmp")})
    if (!place.empty()) bases.push_back(fmt::format("{}/sortie-{}", place, ::geteuid()));
  return bases;
}

std::optional<HeldRun> held_run(const fs::path& folder) {
  const Result<std::string> text = read_file(folder / kHeldFile, kMaxHeldBytes);
  if (!text) return std::nullopt;
  HeldRun run;
  const char* const end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, run.until_ms);
  if (error != std::errc() || rest == end) return std::nullopt;
  run.run_id.assign(rest + 1, end);
  return run;
}

/// Returns true if no process held the folder and it was removed.
bool remove_if_unheld(const fs::path& folder) {
  if (may_be_held(folder)) return false;
  remove_with_shared_memory(folder);
  return true;
}

}  // namespace

Result<RunFolder> RunFolder::make(const std::string& name) {
  SORTIE_ASSIGN_OR_RETURN(const std::string base, make_base());
  // Held during the check, so that no folder is seen between its mkdir and its lock. Earlier builds
  // lock the file.
  const Fd base_folder(::open(base.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  SORTIE_TRY(lock_exclusively(base_folder, base));
  const std::string lock_file = base + "/.lock";
  const Fd base_lock(::open(lock_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  SORTIE_TRY(lock_exclusively(base_lock, lock_file));
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(base, ignored)) {
    if (entry.is_directory(ignored) && !remove_if_unheld(entry.path()) &&
        entry.path().filename() == name)
      return fail(ErrorCode::runner,
                  entry.path().string() + ": another runner of this run and attempt is alive here");
  }
  RunFolder folder;
  folder.path_ = base + '/' + name;
  if (::mkdir(folder.path_.c_str(), 0700) != 0)
    return std::unexpected(os_error(errno, folder.path_));
  SORTIE_ASSIGN_OR_RETURN(folder.lock_, FolderLock::take(folder.path_));
  return folder;
}

Result<std::string> find_run_folder(const std::string& name) {
  for (const std::string& base : possible_bases()) {
    const std::string folder = base + '/' + name;
    if (is_private_folder(base) && is_private_folder(folder)) return folder;
    if (::access(folder.c_str(), F_OK) != 0 && may_be_held(folder))
      return fail(ErrorCode::io,
                  folder +
                      ": was removed, perhaps by a cleaner of old files, while the runner lives "
                      "that holds this run; it can no longer be reached");
  }
  return fail(ErrorCode::lost, "no runner holds this run here: its ranks are gone");
}

bool run_folder_may_be_held(const std::string& name) {
  return std::ranges::any_of(
      possible_bases(), [&](const std::string& base) { return may_be_held(base + '/' + name); });
}

RunFolders look_at_run_folders() {
  RunFolders found;
  const Result<std::string> base = make_base();
  if (!base) {
    found.error = base.error().message;
    return found;
  }
  found.base = *base;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(*base, ignored)) {
    if (!entry.is_directory(ignored)) continue;
    const bool held = may_be_held(entry.path());
    (held ? found.held : found.refuse).push_back(entry.path().filename());
    if (auto run = held ? held_run(entry.path()) : std::nullopt)
      found.without_launcher.push_back(*std::move(run));
  }
  return found;
}

Result<> RunFolder::write(const std::string& name, std::string_view content) const {
  const std::string path = path_ + '/' + name;
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return std::unexpected(os_error(errno, path));
  while (!content.empty()) {
    const ssize_t count = ::write(file.get(), content.data(), content.size());
    if (count < 0) return std::unexpected(os_error(errno, path));
    content.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

Result<std::string> RunFolder::make_subfolder(const std::string& name) const {
  const std::string path = path_ + '/' + name;
  if (::mkdir(path.c_str(), 0700) != 0) return std::unexpected(os_error(errno, path));
  return path;
}

Result<> RunFolder::mark_held(const std::string& run_id, std::uint64_t until_ms) const {
  unmark_held();
  return write(kHeldFile, fmt::format("{} {}", until_ms, run_id));
}

void RunFolder::unmark_held() const {
  ::unlink((path_ + '/' + kHeldFile).c_str());
}

void RunFolder::touch() const {
  if (path_.empty()) return;
  std::error_code error;
  const auto now = [](const fs::path& path) {
    ::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  };
  for (fs::recursive_directory_iterator entry(path_, error), end; !error && entry != end;
       entry.increment(error))
    now(entry->path());
  now(path_);
}

void RunFolder::remove() {
  if (path_.empty()) return;
  remove_with_shared_memory(path_);
  path_.clear();
  lock_.reset();
}

std::string run_folder_base() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const bool use_runtime = runtime && runtime[0] == '/' &&
                           is_private_folder(std::string(runtime)) && ::access(runtime, W_OK) == 0;
  return fmt::format("{}/sortie-{}", use_runtime ? runtime : "/tmp", ::geteuid());
}

std::string run_folder_name(const std::string& run_id, std::uint32_t attempt,
                            std::uint32_t node_rank) {
  return fmt::format("{}{}-{}", run_folder_prefix(run_id), attempt, node_rank);
}

bool is_run_folder_name(std::string_view name, const std::string& run_id) {
  const std::string prefix = run_folder_prefix(run_id);
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  const std::size_t dash = name.find('-');
  return dash != std::string_view::npos && all_digits(name.substr(0, dash)) &&
         all_digits(name.substr(dash + 1));
}

}  // namespace sortie::runner
