#include "runner/process/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "common/base/fd.h"

namespace sortie::runner {
namespace {

/// Content of a small /proc file; empty on any error.
std::string read_proc(const std::string& path) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string content;
  char buffer[4096];
  ssize_t count = 0;
  while (file && (count = ::read(file.get(), buffer, sizeof buffer)) > 0)
    content.append(buffer, static_cast<std::size_t>(count));
  return content;
}

/// Calls `visit` for each name in the directory that is a whole number.
void for_each_number(const char* directory, const std::function<void(int)>& visit) {
  DIR* dir = ::opendir(directory);
  if (!dir) return;
  std::vector<int> numbers;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string_view name = entry->d_name;
    int number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc{} && end == name.data() + name.size()) numbers.push_back(number);
  }
  ::closedir(dir);
  for (int number : numbers) visit(number);
}

/// Text after the last ')' of a file `stat` in /proc: " S 1 ..." (the name before it may contain
/// anything).
std::string stat_fields(const std::string& path) {
  const std::string stat = read_proc(path);
  const std::size_t end = stat.rfind(')');
  return end == std::string::npos ? std::string() : stat.substr(end + 1);
}
std::string stat_fields(pid_t pid) {
  return stat_fields(fmt::format("/proc/{}/stat", pid));
}

/// The pids in a file `children` of /proc.
std::vector<pid_t> children_in(const std::string& path) {
  const std::string text = read_proc(path);
  std::vector<pid_t> children;
  const char* cursor = text.data();
  const char* end = cursor + text.size();
  while (cursor < end) {
    pid_t pid = 0;
    const auto [next, error] = std::from_chars(cursor, end, pid);
    if (error == std::errc{}) children.push_back(pid);
    cursor = next == cursor ? cursor + 1 : next;
  }
  return children;
}

/// Applies close_range to all descriptors from 3 up except `keep`. Returns false if the kernel
/// lacks it or the flag.
bool close_ranges(std::initializer_list<int> keep, unsigned flags) {
  std::vector<int> sorted(keep);
  std::sort(sorted.begin(), sorted.end());
  unsigned from = 3;
  bool done = true;
  auto range = [&](unsigned first, unsigned last) {
    if (first <= last) done = done && ::syscall(SYS_close_range, first, last, flags) == 0;
  };
  for (int fd : sorted) {
    if (fd < 3) continue;
    range(from, static_cast<unsigned>(fd) - 1);
    from = static_cast<unsigned>(fd) + 1;
  }
  range(from, ~0u);
  return done;
}

}  // namespace

std::vector<pid_t> direct_children() {
  const pid_t self = ::getpid();
  const std::string path = fmt::format("/proc/self/task/{}/children", self);
  if (::access(path.c_str(), R_OK) == 0) return children_in(path);
  return direct_children_by_search();
}

std::vector<pid_t> direct_children_by_search() {
  const pid_t self = ::getpid();
  std::vector<pid_t> children;
  for_each_number("/proc", [&](int pid) {
    const std::string fields = stat_fields(pid);
    if (fields.size() > 3 && std::atoi(fields.c_str() + 3) == self) children.push_back(pid);
  });
  return children;
}

void kill_children(std::span<const pid_t> children) {
  const pid_t own_group = ::getpgrp();
  std::vector<pid_t> groups;
  for (pid_t child : children) {
    // The child is ours and unreaped, so neither its pid nor its group can have been reused.
    const pid_t group = ::getpgid(child);
    ::kill(child, SIGKILL);
    if (group > 1 && group != own_group &&
        std::find(groups.begin(), groups.end(), group) == groups.end()) {
      groups.push_back(group);
      ::kill(-group, SIGKILL);
    }
  }
}

char process_state(pid_t pid) {
  const std::string fields = stat_fields(pid);
  return fields.size() > 1 ? fields[1] : '?';
}

bool is_ending(pid_t pid) {
  constexpr unsigned kExiting = 0x4;  // PF_EXITING of the kernel's flags word
  bool any = false, all = true;
  for_each_number(fmt::format("/proc/{}/task", pid).c_str(), [&](int thread) {
    if (!all) return;
    const std::string fields = stat_fields(fmt::format("/proc/{}/task/{}/stat", pid, thread));
    unsigned flags = 0;
    if (std::sscanf(fields.c_str(), " %*c %*d %*d %*d %*d %*d %u", &flags) != 1) return;
    any = true;
    all = (flags & kExiting) != 0;
  });
  return any && all;
}

bool has_ending_descendant(pid_t pid) {
  constexpr std::size_t kMost = 256;
  std::vector<pid_t> seen = {pid};
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (i > 0 && is_ending(seen[i])) return true;
    for_each_number(fmt::format("/proc/{}/task", seen[i]).c_str(), [&](int thread) {
      for (const pid_t child :
           children_in(fmt::format("/proc/{}/task/{}/children", seen[i], thread)))
        if (seen.size() <= kMost) seen.push_back(child);
    });
  }
  return false;
}

std::string process_name(pid_t pid) {
  std::string name = read_proc(fmt::format("/proc/{}/comm", pid));
  while (name.ends_with('\n')) name.pop_back();
  return name.empty() ? "?" : name;
}

std::string process_text(pid_t pid) {
  std::string text = fmt::format("process {} ({})", pid, process_name(pid));
  struct stat info {};
  if (::stat(fmt::format("/proc/{}", pid).c_str(), &info) != 0 || info.st_uid == ::geteuid())
    return text;
  // Without getpwuid(): the runner is static.
  return text + (info.st_uid == 0 ? " of root" : fmt::format(" of user id {}", info.st_uid));
}

void close_descriptors_except(std::initializer_list<int> keep) {
  if (close_ranges(keep, 0)) return;
  for_each_number("/proc/self/fd", [&](int fd) {  // Linux before 5.9
    if (fd >= 3 && std::find(keep.begin(), keep.end(), fd) == keep.end()) ::close(fd);
  });
}

void cloexec_all_descriptors() {
  if (!close_ranges({}, CLOSE_RANGE_CLOEXEC)) cloexec_all_descriptors_by_search();
}

void cloexec_all_descriptors_by_search() {
  for_each_number("/proc/self/fd", [](int fd) {
    if (fd >= 3) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  });
}

}  // namespace sortie::runner
