#include "trainer/checkpoint/file_ops.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace sortie::trainer::file_ops {
namespace fs = std::filesystem;
namespace {

enum class Action { none, kill, stop, enospc, eio, eintr, short_write, delay };

struct Fault {
  std::atomic<std::uint64_t> count{0};
  std::uint64_t at = 0;
  Action action = Action::none;
  bool no_exchange = false, no_read = false;
  std::optional<Error> problem;  // in SORTIE_FAULT: every operation then fails with it
};

/// Adds one of the faults that commas separate; returns whether it was understood.
bool add_fault(Fault& fault, std::string_view text) {
  constexpr std::string_view kPrefix = "checkpoint:";
  if (text == "checkpoint:noexchange") {
    fault.no_exchange = true;
    return true;
  }
  if (text == "checkpoint:noread") {
    fault.no_read = true;
    return true;
  }
  constexpr std::pair<std::string_view, Action> kActions[] = {
      {"kill", Action::kill},  {"stop", Action::stop},   {"enospc", Action::enospc},
      {"eio", Action::eio},    {"eintr", Action::eintr}, {"short", Action::short_write},
      {"delay", Action::delay}};
  const std::size_t colon = text.rfind(':');
  if (text.starts_with(kPrefix) && colon > kPrefix.size()) {
    const std::string_view number = text.substr(kPrefix.size(), colon - kPrefix.size());
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), fault.at);
    for (const auto& [name, action] : kActions)
      if (error == std::errc{} && end == number.data() + number.size() &&
          text.substr(colon + 1) == name && fault.action == Action::none) {
        fault.action = action;
        return true;
      }
  }
  return false;
}

Result<> configure(Fault& fault, std::string_view text) {
  fault.count = 0;
  const auto reset = [&] {
    fault.at = 0;
    fault.action = Action::none;
    fault.no_exchange = fault.no_read = false;
    fault.problem.reset();
  };
  reset();
  for (std::size_t begin = 0; !text.empty() && begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (!add_fault(fault, text.substr(begin, end - begin))) {
      reset();
      return fail(
          ErrorCode::usage,
          fmt::format(
              "SORTIE_FAULT={}: want one checkpoint:N:kill|stop|enospc|eio|eintr|short|"
              "delay, checkpoint:noexchange, checkpoint:noread, or several with commas between "
              "them",
              text));
    }
    begin = end + 1;
  }
  return {};
}

/// One per process, because there is one environment.
Fault& process_fault() {
  static Fault fault;
  static const bool configured = [] {
    const char* text = std::getenv("SORTIE_FAULT");
    if (auto result = configure(fault, text == nullptr ? "" : text); !result)
      fault.problem = std::move(result).error();
    return true;
  }();
  static_cast<void>(configured);
  return fault;
}

/// The fault point: returns what to do at this operation. Kills, stops and delays here.
Action next_action() {
  Fault& fault = process_fault();
  const std::uint64_t count = ++fault.count;
  if (fault.action == Action::none || count != fault.at) return Action::none;
  if (fault.action == Action::kill) ::kill(::getpid(), SIGKILL);
  if (fault.action == Action::stop) ::kill(::getpid(), SIGSTOP);
  if (fault.action == Action::delay) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  return fault.action;
}

/// Runs a system call that returns -1 on failure; repeats it if it was interrupted. An injected
/// error replaces the call.
template <class Call>
Result<int> run(std::string_view what, const fs::path& path, Call call) {
  Action action = next_action();
  if (const auto& problem = process_fault().problem) return std::unexpected(*problem);
  for (;;) {
    int result = -1;
    if (action == Action::enospc) {
      errno = ENOSPC;
    } else if (action == Action::eio) {
      errno = EIO;
    } else if (action == Action::eintr) {
      errno = EINTR;
      action = Action::none;
    } else {
      result = call();
    }
    if (result >= 0) return result;
    if (errno != EINTR)
      return std::unexpected(os_error(errno, fmt::format("{} {}", what, path.string())));
  }
}

struct Observer {
  std::mutex mutex;
  std::function<void(const Operation&)> call;
};
Observer& process_observer() {
  static Observer observer;
  return observer;
}

/// Reads the function without the lock: it is only set while no operation runs.
void observe(const Operation& operation) {
  Observer& observer = process_observer();
  if (!observer.call) return;
  const std::lock_guard lock(observer.mutex);
  observer.call(operation);
}

bool is_direct(const Fd& file) {
  const int flags = ::fcntl(file.get(), F_GETFL);
  return flags >= 0 && (flags & O_DIRECT) != 0;
}

template <class Call>
Result<> run_void(std::string_view what, const fs::path& path, Call call) {
  SORTIE_TRY(run(what, path, call));
  return {};
}

/// renameat2; fails as on a file system without its flags if the fault says so.
int rename_with(unsigned flags, const fs::path& from, const fs::path& to) {
  if (!process_fault().no_exchange)
    return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags);
  errno = EINVAL;
  return -1;
}

/// Whether this error of renameat2 means that the file system does not know the flag.
bool flag_is_unknown(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
}

}  // namespace

Result<> set_fault(std::string_view specification) {
  return configure(process_fault(), specification);
}

std::uint64_t operations() {
  return process_fault().count;
}

void set_observer(std::function<void(const Operation&)> observer) {
  process_observer().call = std::move(observer);
}

Result<> make_dir(const fs::path& path) {
  SORTIE_TRY(run_void("create folder", path, [&] { return ::mkdir(path.c_str(), 0755); }));
  observe({.kind = Operation::Kind::make_dir, .path = path});
  return {};
}

Result<Fd> create_file(const fs::path& path) {
  SORTIE_ASSIGN_OR_RETURN(
      const int fd, run("create", path, [&] {
        return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
      }));
  observe({.kind = Operation::Kind::create, .path = path});
  return Fd(fd);
}

bool set_direct(const Fd& file, bool direct) {
  const int flags = ::fcntl(file.get(), F_GETFL);
  if (flags < 0) return false;
  return ::fcntl(file.get(), F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

Result<> write_all(const Fd& file, std::span<const std::byte> bytes, const fs::path& path) {
  // Pieces small enough that the disk starts on the first while the rest is copied.
  constexpr std::size_t kPiece = std::size_t{8} << 20;
  while (!bytes.empty()) {
    Action action = next_action();
    std::size_t size = std::min(bytes.size(), kPiece);
    if (action == Action::short_write && size > 1) size /= 2;
    ssize_t count = -1;
    if (action == Action::enospc)
      errno = ENOSPC;
    else if (action == Action::eio)
      errno = EIO;
    else if (action == Action::eintr)
      errno = EINTR;
    else
      count = ::write(file.get(), bytes.data(), size);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EINVAL && is_direct(file) && set_direct(file, false)) continue;
      return std::unexpected(os_error(errno, "write " + path.string()));
    }
    observe({.kind = Operation::Kind::write,
             .path = path,
             .bytes = bytes.first(static_cast<std::size_t>(count))});
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Result<> sync_file(const Fd& file, const fs::path& path) {
  SORTIE_TRY(run_void("fsync", path, [&] { return ::fsync(file.get()); }));
  observe({.kind = Operation::Kind::sync_file, .path = path});
  return {};
}

Result<> close_file(Fd file, const fs::path& path) {
  // Linux closes the descriptor even if close is interrupted, so close is never repeated.
  return run_void("close", path, [&] {
    const int result = ::close(file.release());
    return result != 0 && errno == EINTR ? 0 : result;
  });
}

Result<> rename_path(const fs::path& from, const fs::path& to) {
  SORTIE_TRY(run_void("rename", from, [&] { return ::rename(from.c_str(), to.c_str()); }));
  observe({.kind = Operation::Kind::rename, .path = from, .to = to});
  return {};
}

Result<bool> rename_if_absent(const fs::path& from, const fs::path& to) {
  bool renamed = true;
  SORTIE_TRY(run_void("rename", from, [&] {
    int result = rename_with(RENAME_NOREPLACE, from, to);
    if (result != 0 && flag_is_unknown(errno)) {
      result = ::link(from.c_str(), to.c_str());
      // If this fails, both names are left; remove_leftovers() of the store removes this one.
      if (result == 0) static_cast<void>(::unlink(from.c_str()));
    }
    renamed = result == 0 || errno != EEXIST;
    return renamed ? result : 0;
  }));
  if (renamed) observe({.kind = Operation::Kind::rename, .path = from, .to = to});
  return renamed;
}

Result<bool> exchange_paths(const fs::path& a, const fs::path& b) {
  bool can = true;
  SORTIE_TRY(run_void("exchange", a, [&] {
    const int result = rename_with(RENAME_EXCHANGE, a, b);
    can = result == 0 || !flag_is_unknown(errno);
    return can ? result : 0;
  }));
  if (can) observe({.kind = Operation::Kind::exchange, .path = a, .to = b});
  return can;
}

Result<> sync_dir(const fs::path& path) {
  SORTIE_TRY(run_void("fsync folder", path, [&] {
    const Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return folder ? ::fsync(folder.get()) : -1;
  }));
  observe({.kind = Operation::Kind::sync_dir, .path = path});
  return {};
}

Result<std::size_t> read_at(const Fd& file, std::uint64_t offset, std::span<std::byte> bytes,
                            const fs::path& path) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    ssize_t count = -1;
    if (process_fault().no_read)
      errno = EIO;
    else
      count = ::pread(file.get(), bytes.data() + done, bytes.size() - done,
                      static_cast<off_t>(offset + done));
    if (count == 0) break;
    if (count < 0) {
      if (errno == EINTR) continue;
      return std::unexpected(os_error(errno, "read " + path.string()));
    }
    done += static_cast<std::size_t>(count);
  }
  return done;
}

Result<> remove_tree(const fs::path& path) {
  // One fault point per entry, the way a killed process would leave the tree half removed.
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error))) {
    std::vector<fs::path> children;
    for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error))
      children.push_back(at->path());
    if (error)
      return fail(ErrorCode::io, fmt::format("list {}: {}", path.string(), error.message()));
    for (const fs::path& child : children) SORTIE_TRY(remove_tree(child));
  }
  SORTIE_TRY(run_void("remove", path, [&] {
    const int result = ::remove(path.c_str());
    return result != 0 && errno == ENOENT ? 0 : result;
  }));
  observe({.kind = Operation::Kind::remove, .path = path});
  return {};
}

}  // namespace sortie::trainer::file_ops
