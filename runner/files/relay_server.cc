#include "runner/files/relay_server.h"

#include <boost/asio/ip/address.hpp>

#include "common/asio/spawn.h"
#include "common/base/log.h"
#include "common/files/manifest.h"
#include "runner/files/sealed_stream.h"

namespace sortie::runner {
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr std::size_t kMaxConnections = 16;
constexpr std::chrono::milliseconds kHelloLimit{5000};
constexpr std::chrono::milliseconds kKeyLimit{2500}, kKeyPoll{50};
/// A host that reads nothing for this long is dropped; it then asks the launcher.
constexpr std::chrono::milliseconds kWriteLimit{15000};
/// Time after the last write.
constexpr std::chrono::milliseconds kIdleBeat{1000};

}  // namespace

RelayServer::RelayServer(asio::io_context& io, files::TreeWriter& tree)
    : io_(io), tree_(tree), acceptor_(io) {}

std::uint16_t RelayServer::listen(const std::string& text) {
  boost::system::error_code error;
  const asio::ip::address address = asio::ip::make_address(text, error);
  if (error) return 0;
  const tcp::endpoint endpoint(address, 0);
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    log::info("gives no pieces to other hosts: {}: {}", text, error.message());
    acceptor_.close(error);
    return 0;
  }
  spawn(io_, accept_loop());
  return acceptor_.local_endpoint(error).port();
}

void RelayServer::notify() {
  for (Wakeup& one : waiting_) one.notify();
}

void RelayServer::close() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  keys_.clear();
}

asio::awaitable<void> RelayServer::accept_loop() {
  for (;;) {
    tcp::socket socket(io_);
    const auto [error] = co_await acceptor_.async_accept(socket, kToken);
    if (!acceptor_.is_open()) co_return;
    if (error || waiting_.size() >= kMaxConnections) {
      // Out of descriptors, or too many connections: do not spin.
      asio::steady_timer pause(io_, std::chrono::milliseconds(20));
      co_await pause.async_wait(kToken);
      continue;
    }
    spawn(io_, serve(std::move(socket)));
  }
}

asio::awaitable<void> RelayServer::serve(tcp::socket socket) {
  const auto news = waiting_.emplace(waiting_.end(), io_);
  co_await give(std::move(socket), *news);
  waiting_.erase(news);
}

asio::awaitable<void> RelayServer::give(tcp::socket socket, Wakeup& news) {
  SealedStream stream(std::move(socket));
  stream.set_deadline(kHelloLimit);
  const auto link = co_await stream.read_link();
  if (!link) co_return;
  // The other host may connect before the launcher's message about it arrives.
  const auto until = std::chrono::steady_clock::now() + kKeyLimit;
  auto key = keys_.find(*link);
  while (key == keys_.end() && std::chrono::steady_clock::now() < until) {
    co_await news.wait(kKeyPoll);
    key = keys_.find(*link);
  }
  if (key == keys_.end()) co_return;
  const std::string secret = key->second;
  const auto opened = co_await stream.open(secret, SealedStream::Side::serves);
  if (!opened) co_return;
  files::WantedReader wanted;
  while (!wanted.complete()) {
    const auto message = co_await stream.read();
    if (!message) co_return;
    const auto* list = std::get_if<wire::FilesWanted>(&*message);
    if (!list || !wanted.add(*list, tree_.entries())) co_return;
  }
  wire::Message message = wire::FilePiece();
  wire::FilePiece& next = std::get<wire::FilePiece>(message);  // keeps its buffer
  const wire::Message beat = wire::Heartbeat();
  auto beat_at = std::chrono::steady_clock::now() + kIdleBeat;
  for (const wire::PieceRange& range : wanted.take())
    for (std::uint32_t piece = range.first; piece < range.first + range.count; ++piece) {
      while (!tree_.has(range.entry, piece)) {
        const auto left = beat_at - std::chrono::steady_clock::now();
        if (left.count() > 0) {
          co_await news.wait(left);  // the pieces that come may be others
          continue;
        }
        stream.set_deadline(kWriteLimit);
        const auto sent = co_await stream.write(beat);
        if (!sent) co_return;
        beat_at = std::chrono::steady_clock::now() + kIdleBeat;
      }
      next.entry = range.entry;
      next.piece = piece;
      if (auto read = tree_.read(range.entry, piece, next.bytes); !read) {
        log::warning("{}", read.error().message);
        co_return;  // the other host will ask the launcher
      }
      stream.set_deadline(kWriteLimit);
      const auto sent = co_await stream.write(message);
      if (!sent) co_return;
      beat_at = std::chrono::steady_clock::now() + kIdleBeat;
    }
}

}  // namespace sortie::runner
