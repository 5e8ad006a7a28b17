#include "launcher/ssh/dial.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <memory>

#include "common/asio/token.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
using asio::ip::tcp;
namespace {

using Clock = std::chrono::steady_clock;

void set_option(int fd, int level, int name, int value) {
  // Errors are ignored: no option is needed for a working connection.
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

// Detects a dead link after about 15 s, idle (keepalive) or with data in flight (user timeout).
void tune(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 2);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 15000);
}

asio::awaitable<boost::system::error_code> connect_one(std::shared_ptr<tcp::socket> socket,
                                                       tcp::endpoint endpoint,
                                                       Clock::time_point deadline) {
  asio::steady_timer timer(socket->get_executor(), deadline);
  const auto timed_out = std::make_shared<bool>(false);
  timer.async_wait([socket, timed_out](const boost::system::error_code& cancelled) {
    if (cancelled) return;
    *timed_out = true;
    boost::system::error_code ignored;
    socket->close(ignored);
  });
  auto [error] = co_await socket->async_connect(endpoint, kToken);
  if (*timed_out) co_return asio::error::timed_out;
  co_return error;
}

bool is_out_of_files(const boost::system::error_code& error) {
  return error == boost::system::errc::too_many_files_open ||
         error == boost::system::errc::too_many_files_open_in_system;
}

std::string hint_for(const boost::system::error_code& error) {
  if (error == asio::error::connection_refused) return "is sshd running there, on this port?";
  if (error == asio::error::timed_out)
    return "is the host up, and does a firewall drop the packets?";
  if (is_out_of_files(error)) return "raise `ulimit -n`";
  return "check the route to the host";
}

}  // namespace

asio::awaitable<std::expected<Dialled, DialFailure>> dial(std::vector<tcp::endpoint> endpoints,
                                                          std::chrono::milliseconds timeout) {
  const auto executor = co_await asio::this_coro::executor;
  const auto deadline = Clock::now() + timeout;
  std::string failures;
  std::string hint = "check the name";
  bool out_of_files = false;
  for (std::size_t i = 0; i < endpoints.size(); ++i) {
    // The remaining time is divided among the remaining addresses, so that one that drops packets
    // leaves time for the next.
    const auto now = Clock::now();
    const auto share = (deadline - now) / static_cast<int>(endpoints.size() - i);
    auto socket = std::make_shared<tcp::socket>(executor);
    const auto error = co_await connect_one(socket, endpoints[i], now + share);
    if (!error && socket->is_open()) {
      Dialled dialled;
      dialled.address = endpoints[i].address().to_string();
      dialled.socket.reset(socket->release());
      ::fcntl(dialled.socket.get(), F_SETFL, O_NONBLOCK);
      ::fcntl(dialled.socket.get(), F_SETFD, FD_CLOEXEC);
      tune(dialled.socket.get());
      co_return dialled;
    }
    const std::string why =
        error == asio::error::timed_out
            ? fmt::format("no answer within {} ms",
                          std::chrono::round<std::chrono::milliseconds>(share).count())
            : error.message();
    const auto& at = endpoints[i];
    failures += fmt::format("{}{} port {}: {}", failures.empty() ? "" : ", ",
                            at.address().to_string(), at.port(), why);
    hint = hint_for(error);
    out_of_files = is_out_of_files(error);
  }
  co_return std::unexpected(
      DialFailure{{ErrorCode::connect, fmt::format("{}; {}", failures, hint)}, out_of_files});
}

}  // namespace sortie::launcher::ssh
