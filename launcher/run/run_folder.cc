#include "launcher/run/run_folder.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "common/base/atomic_file.h"

namespace sortie::launcher {
namespace fs = std::filesystem;

namespace {

/// mkdir -p, with 0700 for what is made, whatever the umask; an errno, 0 when the folder is there.
int make_private_folders(const fs::path& path) {
  if (::mkdir(path.c_str(), 0700) == 0) return 0;
  std::error_code ignored;
  if (errno == EEXIST) return fs::is_directory(path, ignored) ? 0 : ENOTDIR;
  if (errno != ENOENT || !path.has_relative_path()) return errno;
  if (const int number = make_private_folders(path.parent_path()); number != 0) return number;
  return ::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST ? 0 : errno;
}

}  // namespace

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Result<fs::path> state_folder(const std::string& log_dir) {
  if (!log_dir.empty()) return fs::path(log_dir);
  if (const char* state = std::getenv("XDG_STATE_HOME"); state && *state == '/')
    return fs::path(state) / "sortie";
  if (const char* home = std::getenv("HOME"); home && *home == '/')
    return fs::path(home) / ".local/state/sortie";
  return fail(ErrorCode::config,
              "HOME is not set: there is no place for the run folder; set logger.log_dir");
}

Result<RunFolder> RunFolder::create(const fs::path& state, bool tensorboard) {
  const fs::path runs = state / "runs";
  std::error_code error;
  if (const int number = make_private_folders(runs); number != 0)
    return fail(ErrorCode::io, fmt::format("{}; set logger.log_dir to a folder that is writable",
                                           os_error(number, runs.string()).message));
  RunFolder folder;
  std::random_device random;
  for (int attempt = 0; attempt < 16; ++attempt) {
    constexpr std::string_view kLetters = "0123456789abcdefghjkmnpqrstvwxyz";
    std::string suffix;
    for (int i = 0; i < 4; ++i) suffix += kLetters[random() % kLetters.size()];
    folder.id_ = fmt::format("{:%Y%m%d-%H%M%S}-{}", fmt::gmtime(std::time(nullptr)), suffix);
    folder.path_ = runs / folder.id_;
    if (::mkdir(folder.path_.c_str(), 0700) == 0) break;
    if (errno != EEXIST)
      return fail(ErrorCode::io, fmt::format("{}; set logger.log_dir to a folder that is writable",
                                             os_error(errno, folder.path_.string()).message));
    folder.path_.clear();
  }
  if (folder.path_.empty())
    return fail(ErrorCode::io, fmt::format("{}: no free run id", runs.string()));
  if (::mkdir((folder.path_ / "logs").c_str(), 0700) != 0)
    return std::unexpected(os_error(errno, (folder.path_ / "logs").string()));

  folder.trackers_ = Trackers(folder.path_, tensorboard);

  // A link that can not be made (a file system without links) takes nothing from the run.
  const fs::path fresh = runs / (".latest-" + folder.id_);
  fs::create_directory_symlink(folder.id_, fresh, error);
  if (!error) fs::rename(fresh, runs / "latest", error);
  if (error) fs::remove(fresh, error);
  return folder;
}

RunFolder RunFolder::open(const fs::path& path, bool tensorboard) {
  RunFolder folder;
  folder.id_ = path.filename().string();
  folder.path_ = path;
  folder.trackers_ = Trackers(path, tensorboard);
  return folder;
}

bool RunFolder::superseded() const {
  if (!superseded_ && !newer_.empty()) superseded_ = ::access(newer_.c_str(), F_OK) == 0;
  return superseded_;
}

fs::path RunFolder::log_path(std::uint32_t rank, wire::Stream stream) const {
  return path_ / "logs" /
         fmt::format("rank-{}.{}", rank, stream == wire::Stream::out ? "out" : "err");
}

Result<> RunFolder::write(const std::string& name, const std::string& content) {
  return write_file_atomic(path_ / name, content, 0600);
}

void RunFolder::append(Fd& file, const fs::path& path, std::string_view bytes) {
  if (!file) file.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!file) {
    if (!trouble_) trouble_ = os_error(errno, path.string());
    return;
  }
  while (!bytes.empty()) {
    const ssize_t count = ::write(file.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      if (!trouble_) trouble_ = os_error(errno, path.string());
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

void RunFolder::event(const std::string& name, const nlohmann::ordered_json& fields) {
  if (superseded()) return;
  nlohmann::ordered_json line = {
      {"schema", "sortie/events/1"}, {"time", unix_time()}, {"event", name}};
  line.update(fields);
  append(events_, path_ / "events.jsonl",
         line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void RunFolder::metric(const nlohmann::json& event) {
  if (superseded()) return;
  const double now = unix_time();
  nlohmann::json line = event;
  line["time"] = now;
  append(metrics_, path_ / "metrics.jsonl",
         line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  trackers_.event(event, now);
}

void RunFolder::profile(std::uint32_t rank, const nlohmann::json& event) {
  constexpr std::string_view kBegin = "{\"traceEvents\":[\n", kEnd = "\n]}\n";
  const auto parts = event.find("events");
  if (superseded() || parts == event.end() || !parts->is_array()) return;
  std::string text;
  for (const auto& entry : *parts)
    text += (text.empty() ? "" : ",\n") +
            entry.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.empty()) return;
  const fs::path path = path_ / fmt::format("profile-rank-{}.json", rank);
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0) {
    if (!trouble_) trouble_ = os_error(errno, path.string());
    return;
  }
  const bool first = info.st_size == 0;
  const std::string bytes = std::string(first ? kBegin : ",\n") + text + std::string(kEnd);
  const off_t at = first ? 0 : info.st_size - static_cast<off_t>(kEnd.size());
  if (::pwrite(file.get(), bytes.data(), bytes.size(), at) != static_cast<ssize_t>(bytes.size()) &&
      !trouble_)
    trouble_ = os_error(errno, path.string());
}

void RunFolder::finish(int exit_code) {
  if (!superseded()) trackers_.finish(exit_code);
}

void RunFolder::log(std::uint32_t rank, wire::Stream stream, std::string_view bytes) {
  // Two files per rank would soon be more than a process may have open; those in use come back.
  constexpr std::size_t kMaxOpenLogs = 256;
  constexpr std::int64_t kMarkEveryMs = 1000;
  if (superseded()) return;
  if (logs_.size() >= kMaxOpenLogs && !logs_.contains({rank, stream})) logs_.clear();
  const auto troubled = [&](int number) {
    if (!trouble_) trouble_ = os_error(number, log_path(rank, stream).string());
  };
  Fd& file = logs_[{rank, stream}];
  if (!file)
    file.reset(::open(log_path(rank, stream).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!file) return troubled(errno);
  const auto [found, fresh] = progress_.try_emplace({rank, stream});
  Progress& progress = found->second;
  struct stat info {};
  if (fresh && ::fstat(file.get(), &info) == 0)
    progress.bytes = static_cast<std::uint64_t>(info.st_size);
  const auto now = static_cast<std::int64_t>(unix_time() * 1000);
  if (now - progress.marked_ms >= kMarkEveryMs || now < progress.marked_ms) {
    progress.marked_ms = now;
    append(times_, path_ / "logs/times",
           fmt::format("{} {} {} {}\n", now, rank, stream == wire::Stream::out ? "out" : "err",
                       progress.bytes));
  }
  // At its place rather than at the end: should another supervisor have taken over this very
  // moment, it gets the same bytes for the same place from the runner.
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(progress.bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return troubled(errno);
    bytes.remove_prefix(static_cast<std::size_t>(count));
    progress.bytes += static_cast<std::uint64_t>(count);
  }
}

}  // namespace sortie::launcher
