#include "runner/streams/forwards.h"

#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <deque>
#include <optional>
#include <string_view>
#include <utility>

#include "common/asio/spawn.h"
#include "common/base/log.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner {
namespace asio = boost::asio;

namespace {

constexpr std::size_t kMaxRequestBytes = 300;
constexpr std::uint32_t kMaxPort = 65535;

struct Request {
  std::string host;
  std::uint32_t port = 0;
};

/// Parses "HOST PORT"; nullopt if malformed.
std::optional<Request> parse_request(std::string_view line) {
  const std::size_t space = line.find(' ');
  if (space == 0 || space == line.npos) return std::nullopt;
  Request request{std::string(line.substr(0, space)), 0};
  const std::string_view port = line.substr(space + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), request.port);
  if (error != std::errc{} || end != port.data() + port.size() || request.port == 0 ||
      request.port > kMaxPort)
    return std::nullopt;
  return request;
}

}  // namespace

/// Shared by its coroutines; `open` is false once it has ended.
struct Forwards::Stream {
  Stream(asio::io_context& io, std::uint64_t number)
      : id(number), socket(io), credit_came(io), data_came(io) {}

  const std::uint64_t id;
  asio::posix::stream_descriptor socket;
  std::uint32_t port = 0;  // to connect to, if the launcher opened the stream
  bool open = true;
  bool ending = false;        // the other end has closed: `incoming` is written first
  std::uint64_t credit = 0;   // bytes that the other end accepts
  std::uint64_t granted = 0;  // bytes that it may still send
  std::string early;          // bytes that the program sent together with its request
  std::deque<std::string> incoming;
  Wakeup credit_came, data_came;
};

void Forwards::take_connection(Fd fd) {
  if (streams_.size() >= wire::kMaxForwards)
    return log::warning("more than {} streams to other hosts, one refused", wire::kMaxForwards);
  spawn(io_, read_request(add(next_++, std::move(fd))));
}

Forwards::Shared Forwards::add(std::uint64_t id, Fd socket) {
  auto stream = std::make_shared<Stream>(io_, id);
  if (socket) stream->socket.assign(socket.release());
  streams_[id] = stream;
  return stream;
}

/// Reads a rank's first line, which names its destination.
asio::awaitable<void> Forwards::read_request(Shared stream) {
  std::string line;
  const auto [error, size] = co_await asio::async_read_until(
      stream->socket, asio::dynamic_buffer(line, kMaxRequestBytes), '\n', kToken);
  if (!stream->open) co_return;
  const auto request =
      error ? std::nullopt : parse_request(std::string_view(line).substr(0, size - 1));
  if (!request) {
    log::warning("a connection to SORTIE_FORWARD without a line \"HOST PORT\" closed");
    end(*stream, "", /*tell=*/false);
    co_return;
  }
  stream->early = line.substr(size);
  stream->granted = wire::kForwardWindow;
  send_(wire::ForwardOpen{stream->id, request->host, request->port});
  send_(wire::ForwardCredit{stream->id, wire::kForwardWindow});
  spawn(io_, read_from_program(stream));
  spawn(io_, write_to_program(stream));
}

Result<> Forwards::take(const wire::ForwardOpen& order) {
  if ((order.id & wire::kForwardByLauncher) == 0 || streams_.contains(order.id) ||
      order.port == 0 || order.port > kMaxPort || streams_.size() >= wire::kMaxForwards)
    return fail(ErrorCode::protocol, "ForwardOpen that can not be");
  auto stream = add(order.id, Fd());
  stream->port = order.port;
  spawn(io_, connect(stream));
  return {};
}

/// Connects to a port of this host, on which a rank of the job listens.
asio::awaitable<void> Forwards::connect(Shared stream) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(stream->port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int failure = 0;
  if (!fd || (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 &&
              errno != EINPROGRESS))
    failure = errno;
  if (failure == 0) {
    const int yes = 1;
    (void)::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    stream->socket.assign(fd.release());
    co_await stream->socket.async_wait(asio::posix::stream_descriptor::wait_write, kToken);
    if (!stream->open) co_return;
    socklen_t size = sizeof failure;
    (void)::getsockopt(stream->socket.native_handle(), SOL_SOCKET, SO_ERROR, &failure, &size);
  }
  if (failure != 0) {
    end(*stream, fmt::format("port {}: {}", stream->port, std::strerror(failure)), /*tell=*/true);
    co_return;
  }
  stream->granted = wire::kForwardWindow;
  send_(wire::ForwardCredit{stream->id, wire::kForwardWindow});
  spawn(io_, read_from_program(stream));
  spawn(io_, write_to_program(stream));
}

asio::awaitable<void> Forwards::read_from_program(Shared stream) {
  std::string buffer(wire::kMaxForwardBytes, '\0');
  while (stream->open) {
    if (stream->credit == 0) {
      co_await stream->credit_came.wait();
      continue;
    }
    if (!stream->early.empty()) {  // much smaller than a window
      stream->credit -= stream->early.size();
      send_(wire::ForwardData{stream->id, std::exchange(stream->early, {})});
      continue;
    }
    const std::size_t most = std::min<std::uint64_t>(buffer.size(), stream->credit);
    const auto [error, count] =
        co_await stream->socket.async_read_some(asio::buffer(buffer.data(), most), kToken);
    if (!stream->open) co_return;
    if (error) {
      end(*stream, "", /*tell=*/true);
      co_return;
    }
    stream->credit -= count;
    send_(wire::ForwardData{stream->id, buffer.substr(0, count)});
  }
}

asio::awaitable<void> Forwards::write_to_program(Shared stream) {
  while (stream->open) {
    if (stream->incoming.empty()) {
      if (stream->ending) {
        end(*stream, "", /*tell=*/false);
        co_return;
      }
      co_await stream->data_came.wait();
      continue;
    }
    const std::string bytes = std::move(stream->incoming.front());
    stream->incoming.pop_front();
    const auto [error, count] =
        co_await asio::async_write(stream->socket, asio::buffer(bytes), kToken);
    if (!stream->open) co_return;
    if (error) {
      end(*stream, "", /*tell=*/!stream->ending);
      co_return;
    }
    if (stream->ending) continue;
    stream->granted += bytes.size();
    send_(wire::ForwardCredit{stream->id, bytes.size()});
  }
}

// Messages for a stream that has ended here were sent before the peer knew, and are ignored.

Result<> Forwards::take(const wire::ForwardData& data) {
  const auto found = streams_.find(data.id);
  if (found == streams_.end()) return {};
  Stream& stream = *found->second;
  if (data.bytes.size() > stream.granted || data.bytes.size() > wire::kMaxForwardBytes)
    return fail(ErrorCode::protocol, "ForwardData exceeds the granted window");
  stream.granted -= data.bytes.size();
  stream.incoming.push_back(data.bytes);
  stream.data_came.notify();
  return {};
}

Result<> Forwards::take(const wire::ForwardCredit& credit) {
  const auto found = streams_.find(credit.id);
  if (found == streams_.end()) return {};
  Stream& stream = *found->second;
  if (credit.bytes > wire::kForwardWindow - std::min(stream.credit, wire::kForwardWindow))
    return fail(ErrorCode::protocol, "ForwardCredit beyond the window");
  stream.credit += credit.bytes;
  stream.credit_came.notify();
  return {};
}

Result<> Forwards::take(const wire::ForwardClose& message) {
  const auto found = streams_.find(message.id);
  if (found == streams_.end()) return {};
  if (!message.why.empty()) log::info("a stream to another host ended: {}", message.why);
  found->second->ending = true;
  found->second->data_came.notify();
  return {};
}

void Forwards::end(Stream& stream, const std::string& why, bool tell) {
  if (!stream.open) return;
  stream.open = false;
  if (stream.socket.is_open()) stream.socket.close();
  stream.credit_came.notify();
  stream.data_came.notify();
  if (tell) send_(wire::ForwardClose{stream.id, why});
  streams_.erase(stream.id);
}

void Forwards::drop_all() {
  while (!streams_.empty()) {
    const Shared stream = streams_.begin()->second;  // end() removes it from the map
    end(*stream, "", /*tell=*/false);
  }
}

void Forwards::close() {
  drop_all();
  listener_.close();
}

}  // namespace sortie::runner
