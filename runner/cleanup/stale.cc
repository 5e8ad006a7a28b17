#include "runner/cleanup/stale.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <optional>
#include <string>

#include "common/base/atomic_file.h"
#include "common/base/fd.h"
#include "runner/cleanup/run_folder.h"
#include "runner/process/cgroup.h"

namespace sortie::runner {
namespace {

constexpr std::size_t kMaxEnvironment = 8u << 20;

/// Value of `name` in a block of zero-terminated "NAME=value" entries.
std::string_view value_in(std::string_view block, std::string_view name) {
  while (!block.empty()) {
    const std::size_t end = block.find('\0');
    const std::string_view entry = block.substr(0, end);
    if (entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name))
      return entry.substr(name.size() + 1);
    if (end == std::string_view::npos) break;
    block.remove_prefix(end + 1);
  }
  return {};
}

bool is_stale(const std::string& process, std::string_view run_id, std::uint32_t attempt) {
  const Result<std::string> block = read_file(process + "/environ", kMaxEnvironment);
  if (!block || value_in(*block, "SORTIE_RUN_ID") != run_id) return false;
  const std::string_view text = value_in(*block, "SORTIE_ATTEMPT");
  std::uint32_t its = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), its);
  return error == std::errc{} && its < attempt;
}

bool kill_if_stale(pid_t pid, std::string_view run_id, std::uint32_t attempt) {
  const std::string process = fmt::format("/proc/{}", pid);
  struct stat info {};
  if (::stat(process.c_str(), &info) != 0 || info.st_uid != ::geteuid()) return false;
  // Open the handle before the check, so that the signal goes to the checked process.
  const Fd handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!is_stale(process, run_id, attempt)) return false;
  if (handle) return ::syscall(SYS_pidfd_send_signal, handle.get(), SIGKILL, nullptr, 0) == 0;
  return ::kill(pid, SIGKILL) == 0;  // Linux before 5.3
}

}  // namespace

void remove_stale_cgroups() {
  const Result<cgroup::OwnCgroup> own = cgroup::look_at_own();
  if (!own || !own->writable) return;  // nothing there can be removed
  for (const std::string& name : cgroup::empty_jobs(*own)) {
    const std::optional<cgroup::JobName> job = cgroup::job_of_folder(name);
    const std::string folder = own->folder + '/' + name;
    struct stat info {};
    // A run folder is locked before its cgroup is created, so an empty cgroup of a starting run is
    // held.
    if (!job || ::stat(folder.c_str(), &info) != 0 || info.st_uid != ::geteuid() ||
        run_folder_may_be_held(run_folder_name(job->run_id, job->attempt, job->node)))
      continue;
    cgroup::remove(folder);
  }
}

bool belongs_to_run(pid_t pid, std::string_view run_id) {
  const Result<std::string> block =
      read_file(fmt::format("/proc/{}/environ", pid), kMaxEnvironment);
  return block && value_in(*block, "SORTIE_RUN_ID") == run_id;
}

std::size_t kill_stale_processes(std::string_view run_id, std::uint32_t attempt) {
  DIR* dir = ::opendir("/proc");
  if (!dir) return 0;
  std::size_t killed = 0;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string_view name = entry->d_name;
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error == std::errc{} && end == name.data() + name.size() && pid != ::getpid() &&
        kill_if_stale(pid, run_id, attempt))
      ++killed;
  }
  ::closedir(dir);
  return killed;
}

}  // namespace sortie::runner
