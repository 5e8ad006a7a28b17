#include "launcher/ssh/jump.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "launcher/ssh/channel.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
namespace {

constexpr std::size_t kPumpBuffer = 32 * 1024;
// sshd's MaxSessions does not count forwarded streams. But each takes a descriptor of the process
// that serves the connection, whose limit is often 1024, and that process encrypts on a single
// core.
constexpr int kMostRiders = 256;

// Shared by both directions. The first direction that ends closes it, which ends the other.
struct Pump {
  Pump(const asio::any_io_executor& executor, Fd fd, std::shared_ptr<ChannelState> c)
      : local(executor, fd.release()), channel(std::move(c)) {}
  asio::posix::stream_descriptor local;
  std::shared_ptr<ChannelState> channel;

  void close() {
    boost::system::error_code ignored;
    local.close(ignored);
    channel->close();
  }
};

asio::awaitable<void> pump_out(std::shared_ptr<Pump> pump) {
  std::array<char, kPumpBuffer> buffer;
  for (;;) {
    auto [error, count] = co_await pump->local.async_read_some(asio::buffer(buffer), kToken);
    if (error) break;
    const std::string_view bytes(buffer.data(), count);
    const auto written = co_await pump->channel->write(bytes);
    if (!written) break;
  }
  pump->close();
}

asio::awaitable<void> pump_in(std::shared_ptr<Pump> pump) {
  std::array<char, kPumpBuffer> buffer;
  for (;;) {
    const auto count = co_await pump->channel->read_some(buffer);
    if (!count || *count == 0) break;
    auto [error, written] =
        co_await asio::async_write(pump->local, asio::buffer(buffer.data(), *count), kToken);
    if (error) break;
  }
  pump->close();
}

}  // namespace

bool JumpConnection::has_room() const {
  if (full || riders >= kMostRiders) return false;
  return !done || (core && !core->closed() && !core->broken());
}

bool JumpRide::is_full(const Error& error) {
  // SSH_OPEN_RESOURCE_SHORTAGE of RFC 4254 in libssh's wording, and the message of OpenSSH's sshd
  // when its process has no descriptor left (an unreachable target is reported with strerror()
  // instead).
  const bool short_of_room =
      error.message.contains("error (4)") || error.message.ends_with("error (2) open failed");
  // With a single stream the connection can not be full.
  if (!short_of_room || connection_->riders < 2) return false;
  connection_->full = true;
  return true;
}

asio::awaitable<Result<Fd>> dial_through(std::shared_ptr<SessionCore> jump, std::string host,
                                         int port, Clock::time_point deadline) {
  auto channel = ChannelState::create(jump);
  if (!channel) co_return std::unexpected(std::move(channel).error());
  auto opened = co_await (*channel)->open_forward(host, port, deadline);
  if (!opened) {
    (*channel)->close();
    co_return std::unexpected(std::move(opened).error());
  }
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
    co_return std::unexpected(os_error(errno, "socketpair; raise `ulimit -n`", ErrorCode::connect));
  Fd ours(pair[0]);
  const auto pump = std::make_shared<Pump>(jump->executor(), Fd(pair[1]), *channel);
  // Both end as soon as one of the two streams ends.
  spawn(jump->executor(), pump_out(pump));
  spawn(jump->executor(), pump_in(pump));
  co_return ours;
}

}  // namespace sortie::launcher::ssh
