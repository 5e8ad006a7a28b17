#include "runner/process/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <vector>

#include "common/base/atomic_file.h"
#include "common/base/fd.h"
#include "runner/process/next_word.h"
#include "runner/process/own_mounts.h"

namespace sortie::runner::cgroup {
namespace {

constexpr int kRemoveTries = 50;
constexpr useconds_t kRemovePause = 2000;

bool write_value(const std::string& path, std::string_view value) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return file &&
         ::write(file.get(), value.data(), value.size()) == static_cast<ssize_t>(value.size());
}

struct Mount {
  std::string_view root, point;
};

/// The first cgroup2 mount: "ID PARENT DEV ROOT POINT OPTIONS... - cgroup2 ...".
Mount find_mount(std::string_view mountinfo) {
  while (!mountinfo.empty()) {
    std::string_view line = next_word(mountinfo, '\n');
    if (line.find(" - cgroup2 ") == std::string_view::npos) continue;
    for (int skipped = 0; skipped < 3; ++skipped) next_word(line, ' ');
    const std::string_view root = next_word(line, ' ');
    return {root, next_word(line, ' ')};
  }
  return {};
}

std::vector<std::string> folders_in(const std::string& folder) {
  std::vector<std::string> names;
  if (DIR* dir = ::opendir(folder.c_str())) {
    while (const dirent* entry = ::readdir(dir))
      if (entry->d_type == DT_DIR && entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    ::closedir(dir);
  }
  return names;
}

Result<std::string> read_own_folder() {
  SORTIE_ASSIGN_OR_RETURN(const std::string self, read_file("/proc/self/cgroup"));
  return own_folder(own_mounts(), self);
}

/// Read once per process, because a job needs it several times.
const Result<std::string>& find_own_folder() {
  static const Result<std::string> own = read_own_folder();
  return own;
}

/// Removes "-<number>" from the end of the text.
std::optional<std::uint32_t> take_number(std::string_view& text) {
  const std::size_t dash = text.rfind('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const char* const end = text.data() + text.size();
  std::uint32_t number = 0;
  const auto [stop, error] = std::from_chars(text.data() + dash + 1, end, number);
  if (error != std::errc{} || stop != end) return std::nullopt;
  text = text.substr(0, dash);
  return number;
}

}  // namespace

Result<OwnCgroup> look_at_own() {
  OwnCgroup own;
  SORTIE_ASSIGN_OR_RETURN(own.folder, find_own_folder());
  own.writable = ::access(own.folder.c_str(), W_OK) == 0;
  return own;
}

std::vector<std::string> empty_jobs(const OwnCgroup& own) {
  std::vector<std::string> names;
  for (const std::string& name : folders_in(own.folder)) {
    if (!name.starts_with("sortie-")) continue;
    const Result<std::string> events = read_file(own.folder + '/' + name + "/cgroup.events");
    if (events && events->find("populated 0") != std::string::npos) names.push_back(name);
  }
  return names;
}

std::string job_folder_name(std::string_view run_id, std::uint32_t attempt, std::uint32_t node) {
  return fmt::format("sortie-{}-{}-{}", run_id, attempt, node);
}

std::optional<JobName> job_of_folder(std::string_view name) {
  constexpr std::string_view kPrefix = "sortie-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const std::optional<std::uint32_t> node = take_number(name), attempt = take_number(name);
  if (!node || !attempt || name.empty()) return std::nullopt;
  return JobName{std::string(name), *attempt, *node};
}

std::size_t end_earlier_attempts(std::string_view run_id, std::uint32_t attempt) {
  const Result<std::string> own = find_own_folder();
  if (!own) return 0;
  std::size_t count = 0;
  for (const std::string& name : folders_in(*own)) {
    const std::optional<JobName> job = job_of_folder(name);
    if (!job || job->run_id != run_id || job->attempt >= attempt) continue;
    kill_all(*own + '/' + name);
    remove(*own + '/' + name);
    ++count;
  }
  return count;
}

Result<std::string> own_folder(std::string_view mountinfo, std::string_view self_cgroup) {
  const Mount mount = find_mount(mountinfo);
  if (mount.point.empty()) return fail(ErrorCode::unsupported, "no cgroup2 mount");
  while (!self_cgroup.empty()) {
    std::string_view path = next_word(self_cgroup, '\n');
    if (!path.starts_with("0::")) continue;
    path.remove_prefix(3);
    if (mount.root != "/") {  // only a part of the hierarchy is mounted (containers)
      if (!path.starts_with(mount.root))
        return fail(ErrorCode::unsupported, "own cgroup is outside the mounted part");
      path.remove_prefix(mount.root.size());
    }
    std::string folder = std::string(mount.point) + std::string(path);
    while (folder.ends_with('/')) folder.pop_back();
    return folder;
  }
  return fail(ErrorCode::unsupported, "this process is in no cgroup2");
}

Result<> make(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0755) == 0) return {};
  if (errno != EEXIST) return std::unexpected(os_error(errno, folder, ErrorCode::unsupported));
  kill_all(folder);
  if (remove(folder) && ::mkdir(folder.c_str(), 0755) == 0) return {};
  return fail(ErrorCode::unsupported, folder + ": is in use");
}

Result<std::string> make_job_folder(const std::string& name) {
  SORTIE_ASSIGN_OR_RETURN(const std::string own, find_own_folder());
  const std::string folder = own + '/' + name;
  SORTIE_TRY(make(folder));
  // Enables counters per rank if the controller was delegated to us. A refusal costs only these
  // counters.
  write_value(folder + "/cgroup.subtree_control", "+memory");
  return folder;
}

bool join(const std::string& folder) {
  return write_value(folder + "/cgroup.procs", "0");
}

void kill_all(const std::string& folder) {
  write_value(folder + "/cgroup.kill", "1");
}

std::set<pid_t> members(const std::string& folder) {
  std::set<pid_t> pids;
  if (folder.empty()) return pids;
  const Result<std::string> list = read_file(folder + "/cgroup.procs");
  if (!list) return pids;
  std::string_view text = *list;
  while (!text.empty()) {
    const std::string_view line = next_word(text, '\n');
    pid_t pid = 0;
    if (std::from_chars(line.data(), line.data() + line.size(), pid).ec == std::errc{})
      pids.insert(pid);
  }
  for (const std::string& child : folders_in(folder)) pids.merge(members(folder + '/' + child));
  return pids;
}

bool remove(const std::string& folder) {
  for (const std::string& child : folders_in(folder)) remove(folder + '/' + child);
  // A process leaves its cgroup only a moment after it was reaped.
  for (int tries = 0; tries < kRemoveTries; ++tries) {
    if (::rmdir(folder.c_str()) == 0 || errno == ENOENT) return true;
    if (errno != EBUSY) return false;
    ::usleep(kRemovePause);
  }
  return false;
}

}  // namespace sortie::runner::cgroup
