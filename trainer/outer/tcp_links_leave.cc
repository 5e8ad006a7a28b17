// The end of TcpLinks: what was sent arrives before the connections are closed.
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "trainer/outer/tcp_links_engine.h"

namespace sortie::trainer::outer {
namespace {

using std::chrono::milliseconds;

/// Waiting ends if sent data makes no progress for this long.
constexpr milliseconds kLinger{2000};
/// Time between two checks, and limit of the whole wait.
constexpr milliseconds kLook{100}, kLongestLinger{60000};

/// Bytes that the sockets have accepted and the peers have not acknowledged.
std::int64_t bytes_on_their_way(const std::vector<LinkConnection*>& connections) {
  std::int64_t sum = 0;
  for (const LinkConnection* connection : connections)
    if (int bytes = 0; ::ioctl(connection->fd(), SIOCOUTQ, &bytes) == 0) sum += bytes;
  return sum;
}

}  // namespace

/// Waits until everything that was handed to the sockets has arrived, unless a peer is gone or
/// accepts nothing for kLinger. Reads meanwhile: closing a socket with unread data would discard
/// what it has not sent.
void TcpLinks::Engine::say_bye() {
  const auto drop = [](const RecordHead&, std::span<const std::byte>) { return true; };
  const auto longest = Clock::now() + kLongestLinger;
  auto deadline = Clock::now() + kLinger;
  std::int64_t on_its_way = -1;
  std::vector<LinkConnection*> open;
  for (const Connection& connection : connections_)
    if (connection->state() == LinkConnection::State::up && connection->send(RecordKind::bye))
      open.push_back(connection.get());
  std::vector<const LinkConnection*> shut;
  while (!open.empty() && Clock::now() < deadline) {
    std::vector<pollfd> polled;
    for (const LinkConnection* connection : open) {
      if (!connection->wants_output() && std::ranges::find(shut, connection) == shut.end()) {
        ::shutdown(connection->fd(), SHUT_WR);
        shut.push_back(connection);
      }
      const int out = connection->wants_output() ? POLLOUT : 0;
      polled.push_back({connection->fd(), static_cast<short>(POLLIN | out), 0});
    }
    const auto left = std::min(std::chrono::ceil<milliseconds>(deadline - Clock::now()), kLook);
    const int ready =
        ::poll(polled.data(), polled.size(), std::max(0, static_cast<int>(left.count())));
    if (ready < 0 && errno != EINTR) return;
    if (ready < 0) continue;
    const std::int64_t unacknowledged = bytes_on_their_way(open);
    if (unacknowledged != std::exchange(on_its_way, unacknowledged))
      deadline = std::min(Clock::now() + kLinger, longest);
    std::vector<LinkConnection*> still_open;
    for (std::size_t i = 0; i < open.size(); ++i) {
      const short events = polled[i].revents;
      bool works = (events & POLLOUT) == 0 || open[i]->write_some();
      if (works && open[i]->paused()) works = open[i]->resume(drop).has_value();
      if (works && (events & (POLLIN | POLLHUP | POLLERR)) != 0)
        works = open[i]->read_some(identity_, drop).has_value();
      if (works) still_open.push_back(open[i]);
    }
    open = std::move(still_open);
  }
}

}  // namespace sortie::trainer::outer
