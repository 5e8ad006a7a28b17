#include "launcher/control/supervisor_lock.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "common/base/file_lock.h"
#include "common/base/host_name.h"
#include "launcher/control/control_socket.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace fs = std::filesystem;
using namespace std::string_view_literals;

namespace {

constexpr std::size_t kMaxLockBytes = 4096;

bool is_gone(int error) {
  return error == ENOENT || error == ENOTDIR;
}

Fd open_folder(const fs::path& run) {
  return Fd(::open(run.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

/// Whether a supervisor of any epoch may hold the lock of the folder.
bool may_be_held(const fs::path& run) {
  const Fd fd = open_folder(run);
  if (!fd) return !is_gone(errno);
  return !lock_file_or_none(fd.get(), LOCK_EX);
}

bool may_live(const fs::path& file, const SupervisorFacts& facts) {
  const Fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return !is_gone(errno) || may_be_held(file.parent_path());
  const FileLock lock = try_lock_file(fd.get(), LOCK_SH);
  if (lock != FileLock::absent) return lock != FileLock::taken;
  // The file system has no locks: check the process itself. A process on another machine can not be
  // checked and counts as alive.
  return facts.machine != machine_name() ||
         (facts.pid > 0 && (::kill(facts.pid, 0) == 0 || errno == EPERM));
}

constexpr std::string_view kSupervisor = "supervisor-", kWatcher = "watcher-";

/// N of a name such as "supervisor-N" or "control-N.sock"; 0 for any other name.
unsigned epoch_of(std::string_view name, std::string_view prefix, std::string_view suffix = "") {
  unsigned epoch = 0;
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return 0;
  name.remove_prefix(prefix.size());
  name.remove_suffix(std::min(name.size(), suffix.size()));
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), epoch);
  return error == std::errc{} && end == name.data() + name.size() ? epoch : 0;
}

/// Creates `name` in the run folder, locked by this process. Error: it exists, or the folder is not
/// writable.
Result<Fd> take_file(const fs::path& run, const std::string& name) {
  const fs::path file = run / name;
  const fs::path fresh = run / fmt::format(".{}.{}", name, ::getpid());
  Fd fd(::open(fresh.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd) return std::unexpected(os_error(errno, fresh.string()));
  // Locked and written before it gets its name: no process ever sees it unlocked or incomplete.
  const nlohmann::json facts = {
      {"pid", ::getpid()}, {"machine", machine_name()}, {"started", unix_time()}};
  const std::string text = facts.dump() + "\n";
  Result<> done;
  if (!lock_file_or_none(fd.get(), LOCK_EX))
    done = std::unexpected(os_error(errno, fresh.string()));
  else if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    done = std::unexpected(os_error(errno == 0 ? ENOSPC : errno, fresh.string()));
  else if (::link(fresh.c_str(), file.c_str()) != 0)
    done = errno == EEXIST ? fail(ErrorCode::io, fmt::format("{}: another sortie has just taken "
                                                             "this run over",
                                                             run.filename().string()))
                           : std::unexpected(os_error(errno, file.string()));
  ::unlink(fresh.c_str());
  if (!done) return std::unexpected(std::move(done).error());
  return fd;
}

/// Reads such a file and checks whether its process is alive.
SupervisorFacts read_facts(const fs::path& file, unsigned epoch) {
  SupervisorFacts facts;
  facts.epoch = epoch;
  if (const auto text = read_file(file, kMaxLockBytes)) {
    const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) {
      const auto number = [&](const char* key) {
        const auto it = json.find(key);
        return it != json.end() && it->is_number() ? it->get<double>() : 0.0;
      };
      facts.pid = static_cast<pid_t>(number("pid"));
      facts.started = number("started");
      if (const auto it = json.find("machine"); it != json.end() && it->is_string())
        facts.machine = it->get<std::string>();
    }
  }
  facts.alive = may_live(file, facts);
  return facts;
}

}  // namespace

std::string machine_name() {
  return host_name("this machine");
}

bool SupervisorFacts::elsewhere() const {
  return !machine.empty() && machine != machine_name();
}

std::string SupervisorFacts::process() const {
  if (pid > 0) return fmt::format("pid {} on {}", pid, machine);
  return epoch > 0 ? fmt::format("its file {}{} was removed", kSupervisor, epoch)
                   : "its files were removed";
}

std::string help_without_file(const fs::path& run, const SupervisorFacts& facts) {
  return fmt::format(
      "{}, but a process has locked its folder: `fuser {}` shows it, on the machine "
      "that it runs on; `kill PID` there stops the run",
      facts.process(), run.string());
}

fs::path supervisor_file(const fs::path& run, unsigned epoch) {
  return run / fmt::format("{}{}", kSupervisor, epoch);
}

Result<SupervisorLock> SupervisorLock::take(const fs::path& run, unsigned epoch) {
  SupervisorLock lock;
  lock.epoch_ = epoch;
  SORTIE_ASSIGN_OR_RETURN(lock.file_, take_file(run, fmt::format("{}{}", kSupervisor, epoch)));
  lock.folder_ = open_folder(run);
  // Blocks: a process that checks the lock holds it exclusively for a moment.
  if (lock.folder_ && ::flock(lock.folder_.get(), LOCK_SH) != 0) lock.folder_.reset();
  return lock;
}

SupervisorFacts latest_supervisor(const fs::path& run) {
  unsigned epoch = 0;
  std::error_code error;
  fs::directory_iterator entry(run, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    for (const auto& [prefix, suffix] :
         {std::pair{kSupervisor, ""sv}, std::pair{kControlPrefix, kControlSuffix}})
      epoch = std::max(epoch, epoch_of(entry->path().filename().native(), prefix, suffix));
  if (epoch > 0) return supervisor_of(run, epoch);
  SupervisorFacts facts;
  facts.alive = error ? !is_gone(error.value()) : may_be_held(run);
  return facts;
}

SupervisorFacts supervisor_of(const fs::path& run, unsigned epoch) {
  return read_facts(supervisor_file(run, epoch), epoch);
}

Result<WatcherLock> WatcherLock::take(const fs::path& run, unsigned epoch) {
  const std::string name = fmt::format("{}{}", kWatcher, epoch);
  WatcherLock lock;
  SORTIE_ASSIGN_OR_RETURN(lock.file_, take_file(run, name));
  lock.path_ = run / name;
  return lock;
}

WatcherLock::~WatcherLock() {
  if (file_) ::unlink(path_.c_str());
}

SupervisorFacts watcher_of(const fs::path& run) {
  SupervisorFacts found;
  std::error_code error;
  fs::directory_iterator entry(run, error);
  for (; !error && entry != fs::directory_iterator() && !found.alive; entry.increment(error))
    if (const unsigned epoch = epoch_of(entry->path().filename().native(), kWatcher); epoch > 0)
      found = read_facts(entry->path(), epoch);
  return found;
}

}  // namespace sortie::launcher
