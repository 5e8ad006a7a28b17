#include "trainer/metrics/event_sink.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

namespace sortie::trainer {
namespace {
constexpr std::size_t kMaxPendingBytes = 1u << 20;

/// "step 12: loss 2.31, lr 0.003 ..." for people who run the trainer by hand.
void print_event(const nlohmann::json& event) {
  std::string line = event.value("type", "event");
  for (const auto& [key, value] : event.items())
    if (key != "type")
      line +=
          fmt::format("  {} {}", key, value.is_string() ? value.get<std::string>() : value.dump());
  std::puts(line.c_str());
  std::fflush(stdout);
}
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
  if (!socket_) {
    print_event(event);
    return;
  }
  // NaN and Inf become null in JSON; "replace" keeps any path or message printable.
  const std::string line =
      event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (pending_.size() + line.size() > kMaxPendingBytes) {
    ++dropped_;
    return;
  }
  pending_ += line;
  write_pending();
}

void EventSink::write_pending() {
  while (!pending_.empty()) {
    const ssize_t count =
        ::send(socket_.get(), pending_.data(), pending_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count <= 0) {
      if (count < 0 && errno == EINTR) continue;
      // A runner that is gone will end this process; events are of no use then.
      if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK) pending_.clear();
      return;
    }
    pending_.erase(0, static_cast<std::size_t>(count));
  }
}

void EventSink::flush() {
  for (int i = 0; i < 10 && !pending_.empty(); ++i) {
    pollfd entry{socket_.get(), POLLOUT, 0};
    ::poll(&entry, 1, 100);
    write_pending();
  }
}

}  // namespace sortie::trainer
