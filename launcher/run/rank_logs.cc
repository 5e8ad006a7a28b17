#include "launcher/run/rank_logs.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>

namespace sortie::launcher {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMaxOpenLogs = 256;
constexpr std::int64_t kMarkEveryMs = 1000;

const char* name_of(wire::Stream stream) {
  return stream == wire::Stream::out ? "out" : "err";
}

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Writes at `offset` instead of appending: if another supervisor takes over at this moment, it
/// gets the same bytes for the same offset from the runner. Sets `done` to the number of bytes
/// written. Returns 0 or an errno.
int write_at(int file, std::string_view bytes, std::uint64_t offset, std::size_t& done) {
  for (done = 0; done < bytes.size();) {
    const ssize_t count =
        ::pwrite(file, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (count > 0)
      done += static_cast<std::size_t>(count);
    else if (count == 0 || errno != EINTR)
      return count == 0 ? ENOSPC : errno;
  }
  return 0;
}

}  // namespace

fs::path rank_log_path(const fs::path& run, StreamId id) {
  return run / "logs" / fmt::format("rank-{}.{}", id.first, name_of(id.second));
}

LogEnd read_log_end(const fs::path& run, StreamId id) {
  LogEnd end;
  std::error_code missing;
  const auto size = fs::file_size(rank_log_path(run, id), missing);
  if (!missing) end.file_bytes = end.stream_bytes = size;
  std::ifstream gaps(run / "logs/gaps");
  for (std::string line; std::getline(gaps, line);) {
    std::istringstream words(line);
    std::uint32_t rank = 0;
    std::string stream;
    std::uint64_t offset = 0, mark = 0, lost = 0;
    if (!(words >> rank >> stream >> offset >> mark >> lost)) continue;
    if (rank != id.first || stream != name_of(id.second)) continue;
    end.stream_bytes += lost;
    end.stream_bytes -= mark;
  }
  return end;
}

RankLogs::RankLogs(fs::path run)
    : run_(std::move(run)), times_(run_ / "logs/times"), gaps_(run_ / "logs/gaps") {}

void RankLogs::begin_at(StreamId id, std::uint64_t file_offset) {
  Log& log = logs_[id];
  log.opened = true;
  log.end = file_offset;
}

Result<> RankLogs::open(StreamId id, Log& log, Fd*& file) {
  if (files_.size() >= kMaxOpenLogs && !files_.contains(id)) files_.clear();
  file = &files_[id];
  if (!*file)
    file->reset(::open(rank_log_path(run_, id).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!*file) return std::unexpected(os_error(errno, rank_log_path(run_, id).string()));
  struct stat info {};
  if (!log.opened && ::fstat(file->get(), &info) == 0)
    log.end = static_cast<std::uint64_t>(info.st_size);
  log.opened = true;
  return {};
}

Result<> RankLogs::mark_gap(StreamId id, Log& log, int file) {
  const std::string mark =
      fmt::format("\n[sortie: {} bytes are missing here: {}]\n", log.lost, log.why);
  std::size_t done = 0;
  if (const int error = write_at(file, mark, log.end, done); error != 0) {
    // Undo a partial mark. If the file can not be truncated, the next mark overwrites it.
    if (::ftruncate(file, static_cast<off_t>(log.end)) != 0) log.why = std::strerror(errno);
    return std::unexpected(os_error(error, rank_log_path(run_, id).string()));
  }
  const std::string line =
      fmt::format("{} {} {} {} {}\n", id.first, name_of(id.second), log.end, mark.size(), log.lost);
  log.end += mark.size();
  log.lost = 0;
  (void)gaps_.append(line);  // on a full disk the line waits in memory
  return {};
}

void RankLogs::note_time(StreamId id, Log& log) {
  const std::int64_t now = now_ms();
  if (now - log.marked_ms < kMarkEveryMs && now >= log.marked_ms) return;
  log.marked_ms = now;
  // A missing line only costs the order in time. The file of the bytes reports write errors.
  (void)times_.append(fmt::format("{} {} {} {}\n", now, id.first, name_of(id.second), log.end));
}

Result<> RankLogs::append(StreamId id, std::string_view bytes) {
  Log& log = logs_[id];
  const auto lose = [&](std::size_t count, Error error) -> Result<> {
    log.lost += count;
    lost_bytes_ += count;
    const std::size_t colon = error.message.rfind(": ");
    log.why = colon == std::string::npos ? error.message : error.message.substr(colon + 2);
    return std::unexpected(std::move(error));
  };
  Fd* file = nullptr;
  if (auto opened = open(id, log, file); !opened)
    return lose(bytes.size(), std::move(opened).error());
  if (log.lost > 0)
    if (auto marked = mark_gap(id, log, file->get()); !marked)
      return lose(bytes.size(), std::move(marked).error());
  note_time(id, log);
  std::size_t done = 0;
  const int error = write_at(file->get(), bytes, log.end, done);
  log.end += done;
  if (error == 0) return {};
  return lose(bytes.size() - done, os_error(error, rank_log_path(run_, id).string()));
}

void RankLogs::flush() {
  (void)times_.flush();
  (void)gaps_.flush();
}

void RankLogs::finish() {
  for (auto& [id, log] : logs_) {
    Fd* file = nullptr;
    if (log.lost > 0 && open(id, log, file)) (void)mark_gap(id, log, file->get());
  }
}

}  // namespace sortie::launcher
