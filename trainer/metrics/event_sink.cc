#include "trainer/metrics/event_sink.h"

#include <fmt/chrono.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <iterator>
#include <nlohmann/json.hpp>

#include "common/base/json_text.h"

namespace sortie::trainer {
namespace {
constexpr std::size_t kMaxPendingBytes = 1u << 20;

/// A pipe that is ready for writing accepts this many bytes without blocking.
constexpr std::size_t kPipeBytes = PIPE_BUF;
}  // namespace

Result<EventSink> EventSink::open(const std::string& socket_path) {
  EventSink sink;
  if (socket_path.empty()) return sink;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof address.sun_path)
    return fail(ErrorCode::io,
                fmt::format("SORTIE_SOCKET {}: path longer than a socket allows", socket_path));
  std::memcpy(address.sun_path, socket_path.data(), socket_path.size());
  sink.socket_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!sink.socket_ ||
      ::connect(sink.socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return std::unexpected(os_error(errno, "SORTIE_SOCKET " + socket_path));
  return sink;
}

void EventSink::send(const nlohmann::json& event) {
  if (!socket_) return;
  // NaN and Inf become null in JSON; "replace" keeps any path or message printable.
  const std::string line = json_text(event) + "\n";
  if (pending_.size() + line.size() > kMaxPendingBytes) {
    ++dropped_;
    return;
  }
  pending_ += line;
  write_pending();
}

void EventSink::say(std::string_view line) {
  if (lines_.size() + line.size() > kMaxPendingBytes) return;
  lines_ += fmt::format("{:%Y-%m-%d %H:%M:%S}  {}\n", fmt::localtime(std::time(nullptr)), line);
  write_lines();
}

void EventSink::write_lines() {
  while (!lines_.empty()) {
    pollfd entry{STDOUT_FILENO, POLLOUT, 0};
    if (::poll(&entry, 1, 0) <= 0) return;
    const ssize_t count =
        (entry.revents & POLLOUT) == 0
            ? -1  // no reader
            : ::write(STDOUT_FILENO, lines_.data(), std::min(lines_.size(), kPipeBytes));
    if (count < 0 && (errno == EINTR || errno == EAGAIN) && (entry.revents & POLLOUT) != 0) return;
    if (count < 0) return lines_.clear();
    lines_.erase(0, static_cast<std::size_t>(count));
  }
}

void EventSink::write_pending() {
  while (!pending_.empty()) {
    const ssize_t count =
        ::send(socket_.get(), pending_.data(), pending_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count <= 0) {
      if (count < 0 && errno == EINTR) continue;
      // If the runner is gone, this process ends soon, and events have no use.
      if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK) pending_.clear();
      return;
    }
    pending_.erase(0, static_cast<std::size_t>(count));
  }
}

void EventSink::flush() {
  for (int i = 0; i < 10 && !(pending_.empty() && lines_.empty()); ++i) {
    pollfd entries[] = {{pending_.empty() ? -1 : socket_.get(), POLLOUT, 0},
                        {lines_.empty() ? -1 : STDOUT_FILENO, POLLOUT, 0}};
    ::poll(entries, std::size(entries), 100);
    write_pending();
    write_lines();
  }
}

}  // namespace sortie::trainer
