#include "runner/progress/stacks.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "common/base/fd.h"
#include "common/training/progress.h"

namespace sortie::runner {
namespace {

constexpr std::size_t kMaxProcesses = 32, kMaxThreads = 64, kMaxFiles = 32;
constexpr std::size_t kMaxProcBytes = 16u << 10;
/// A program that writes no last line (faulthandler) is complete when its file has not grown for
/// this long.
constexpr std::chrono::milliseconds kQuiet{300};

/// Reads from `offset` of a file that another user may have created: only if it is a regular file.
std::string read_part(const std::string& path, std::size_t offset, std::size_t most) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  std::string text(most, '\0');
  const ssize_t count = ::pread(file.get(), text.data(), most, static_cast<off_t>(offset));
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  return text;
}

std::string read_proc_text(const std::string& path) {
  std::string text = read_part(path, 0, kMaxProcBytes);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\0')) text.pop_back();
  return text;
}

std::vector<int> numbers_in(const std::string& folder) {
  std::vector<int> found;
  DIR* dir = ::opendir(folder.c_str());
  if (dir == nullptr) return found;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string_view name = entry->d_name;
    int number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc{} && end == name.data() + name.size()) found.push_back(number);
  }
  ::closedir(dir);
  std::ranges::sort(found);
  return found;
}

/// Value of a line "Name:\tvalue" in /proc/PID/status.
std::string status_value(const std::string& status, std::string_view name) {
  const std::size_t at = status.find(fmt::format("\n{}:\t", name));
  if (at == std::string::npos) return {};
  const std::size_t begin = at + name.size() + 3;
  return status.substr(begin, status.find('\n', begin) - begin);
}

pid_t parent_of(pid_t pid) {
  return std::atoi(
      status_value(read_proc_text(fmt::format("/proc/{}/status", pid)), "PPid").c_str());
}

std::string indented(const std::string& text) {
  std::string out = "    ";
  for (const char c : text) {
    out += c;
    if (c == '\n') out += "    ";
  }
  return out + "\n";
}

}  // namespace

std::vector<pid_t> process_tree_of(pid_t root) {
  std::vector<pid_t> tree;
  if (root <= 0 || ::access(fmt::format("/proc/{}", root).c_str(), F_OK) != 0) return tree;
  std::map<pid_t, std::vector<pid_t>> children;
  for (const pid_t pid : numbers_in("/proc")) children[parent_of(pid)].push_back(pid);
  tree.push_back(root);
  for (std::size_t i = 0; i < tree.size(); ++i)
    for (const pid_t child : children[tree[i]])
      if (tree.size() < kMaxProcesses) tree.push_back(child);
  return tree;
}

bool catches_quit(pid_t pid) {
  const std::string caught =
      status_value(read_proc_text(fmt::format("/proc/{}/status", pid)), "SigCgt");
  const unsigned long long mask = std::strtoull(caught.c_str(), nullptr, 16);
  return (mask >> (SIGQUIT - 1) & 1) != 0;
}

std::string kernel_view(pid_t pid) {
  const std::string folder = fmt::format("/proc/{}/task", pid);
  const std::vector<int> threads = numbers_in(folder);
  std::string text = fmt::format("process {} ({}), {} threads\n", pid,
                                 read_proc_text(fmt::format("/proc/{}/comm", pid)), threads.size());
  for (std::size_t i = 0; i < std::min(threads.size(), kMaxThreads); ++i) {
    const std::string at = fmt::format("{}/{}/", folder, threads[i]);
    const std::string status = read_proc_text(at + "status");
    const std::string wchan = read_proc_text(at + "wchan");
    text += fmt::format("  thread {} ({}), {}", threads[i], read_proc_text(at + "comm"),
                        status_value(status, "State"));
    if (!wchan.empty() && wchan != "0") text += fmt::format(", in {}", wchan);
    if (const std::string call = read_proc_text(at + "syscall"); !call.empty())
      text += fmt::format(", system call {}", call);
    text += '\n';
    if (const std::string stack = read_proc_text(at + "stack"); !stack.empty())
      text += indented(stack);
  }
  return text;
}

StackDumper::StackDumper(std::uint32_t rank, pid_t root, std::string socket_path)
    : rank_(rank),
      prefix_(std::move(socket_path) + std::string(training::kStacksSuffix)),
      processes_(process_tree_of(root)) {
  look({});
  for (auto& [path, file] : files_) {
    file.from = file.size;
    file.ended = false;
  }
  for (const pid_t pid : processes_) {
    if (!catches_quit(pid)) continue;
    if (::kill(pid, SIGQUIT) == 0)
      ++asked_;
    else
      refused_ = fmt::format("SIGQUIT to process {}: {}", pid, std::strerror(errno));
  }
}

void StackDumper::look(Clock::time_point now) {
  const std::size_t slash = prefix_.rfind('/');
  const std::string folder = prefix_.substr(0, slash), start = prefix_.substr(slash + 1);
  DIR* dir = ::opendir(folder.c_str());
  if (dir == nullptr) return;
  while (const dirent* entry = ::readdir(dir)) {
    if (!std::string_view(entry->d_name).starts_with(start) || files_.size() > kMaxFiles) continue;
    const std::string path = fmt::format("{}/{}", folder, entry->d_name);
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    File& file = files_[path];
    const auto size = static_cast<std::size_t>(info.st_size);
    if (size == file.size) continue;
    file.size = size;
    file.grown = now;
    constexpr std::size_t kTail = training::kStacksEnd.size() + 1;
    if (size > file.from + kTail)
      file.ended = read_part(path, size - kTail, kTail).starts_with(training::kStacksEnd);
  }
  ::closedir(dir);
}

bool StackDumper::complete(Clock::time_point now) {
  if (asked_ == 0) return true;
  look(now);
  std::size_t written = 0;
  for (const auto& [path, file] : files_)
    if (file.size > file.from && (file.ended || now - file.grown >= kQuiet)) ++written;
  return written >= asked_;
}

wire::StackDump StackDumper::take() {
  wire::StackDump dump;
  dump.rank = rank_;
  if (processes_.empty()) {
    dump.how = "none: it has no process";
    return dump;
  }
  bool told = false;
  for (const auto& [path, file] : files_) {
    const std::size_t room = kMaxStackBytes / 2 - std::min(kMaxStackBytes / 2, dump.text.size());
    const std::string text = read_part(path, file.from, std::min(file.size - file.from, room));
    if (text.empty()) continue;
    told = true;
    dump.text +=
        fmt::format("written by the program ({}):\n{}\n", path.substr(path.rfind('/') + 1), text);
  }
  dump.text += "seen by the kernel:\n";
  for (const pid_t pid : processes_) dump.text += kernel_view(pid);
  if (dump.text.size() > kMaxStackBytes) dump.text.resize(kMaxStackBytes);
  if (told)
    dump.how = "program";
  else if (asked_ > 0)
    dump.how = "kernel: no process of it answered SIGQUIT";
  else if (!refused_.empty())
    dump.how = "kernel: " + refused_;
  else
    dump.how = "kernel: no process of it catches SIGQUIT";
  return dump;
}

}  // namespace sortie::runner
