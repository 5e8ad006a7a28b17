#include "launcher/control/log_feed.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

namespace sortie::launcher {
namespace {
constexpr std::size_t kLogReadBytes = 256u << 10;
constexpr std::uint64_t kTurnBytes = 1u << 20;  // per log and turn
}  // namespace

LogFeed::LogFeed(const RunRecord& record, const std::set<std::uint32_t>& ranks, Sink sink)
    : record_(record), sink_(std::move(sink)), buffer_(kLogReadBytes) {
  for (const RunRecord::Host& host : record.hosts)
    for (const std::uint32_t rank : host.ranks)
      for (const wire::Stream stream : {wire::Stream::out, wire::Stream::err})
        if (ranks.empty() || ranks.contains(rank)) logs_[{rank, stream}] = {&host.name};
  notices_.reset(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (notices_ && ::inotify_add_watch(notices_.get(), (record.logs_of / "logs").c_str(),
                                      IN_MODIFY | IN_CREATE) < 0)
    notices_.reset();
}

std::string LogFeed::path(const StreamKey& key) const {
  return fmt::format("{}/logs/rank-{}.{}", record_.logs_of.string(), key.first,
                     key.second == wire::Stream::out ? "out" : "err");
}

std::uint64_t LogFeed::size(const StreamKey& key) const {
  struct stat info {};
  return ::stat(path(key).c_str(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

std::uint64_t LogFeed::hand_out(const StreamKey& key, const Log& log, std::uint64_t begin,
                                std::uint64_t end) {
  const Fd file(::open(path(key).c_str(), O_RDONLY | O_CLOEXEC));
  while (file && begin < end) {
    const ssize_t count =
        ::pread(file.get(), buffer_.data(), std::min<std::uint64_t>(kLogReadBytes, end - begin),
                static_cast<off_t>(begin));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    sink_({key.first, *log.host, key.second,
           std::string_view(buffer_.data(), static_cast<std::size_t>(count))});
    begin += static_cast<std::uint64_t>(count);
  }
  return begin;
}

void LogFeed::skip_to_end() {
  for (auto& [key, log] : logs_) log.position = size(key);
}

void LogFeed::replay(std::optional<std::int64_t> since_ms) {
  std::map<StreamKey, std::uint64_t> sizes;
  for (auto& [key, log] : logs_) sizes[key] = log.position = size(key);
  for (const LogPiece& piece : pieces_in_time(record_.logs_of, sizes, since_ms))
    hand_out(piece.stream, logs_.at(piece.stream), piece.begin, piece.end);
}

void LogFeed::read_notices() {
  alignas(inotify_event) char events[16384];
  ssize_t count = 0;
  while (notices_ && (count = ::read(notices_.get(), events, sizeof events)) > 0) {
    for (ssize_t at = 0; at < count;) {
      const auto* event = reinterpret_cast<const inotify_event*>(events + at);
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      unsigned rank = 0;
      char stream[4] = {};
      if (event->mask & IN_Q_OVERFLOW) {
        for (auto& [key, log] : logs_) log.grown = true;
      } else if (event->len > 0 && std::sscanf(event->name, "rank-%u.%3s", &rank, stream) == 2) {
        const auto log =
            logs_.find({rank, stream[0] == 'e' ? wire::Stream::err : wire::Stream::out});
        if (log != logs_.end()) log->second.grown = true;
      }
    }
  }
}

bool LogFeed::take(bool everything) {
  read_notices();
  bool more = false;
  for (auto& [key, log] : logs_) {
    if (!everything && notices_ && !log.grown) continue;
    log.grown = false;
    const std::uint64_t end = size(key);
    if (end <= log.position) continue;
    const std::uint64_t until = std::min(end, log.position + kTurnBytes);
    log.position = hand_out(key, log, log.position, until);
    if (until < end) more = log.grown = true;
  }
  return more;
}

}  // namespace sortie::launcher
