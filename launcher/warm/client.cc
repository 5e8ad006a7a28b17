#include "launcher/warm/client.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <utility>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/wire/codec.h"
#include "common/wire/serving.h"

namespace sortie::launcher::warm {
namespace asio = boost::asio;

namespace {
/// Initial and maximum buffer size. The buffer grows when a read fills it.
constexpr std::size_t kLeastCarried = 4u << 10, kMostCarried = 64u << 10;
/// Time limit from the end of a client to the end of its conversation: a runner gives its ranks 5 s
/// and may take 15 s more.
constexpr std::chrono::milliseconds kEndingTime{25'000};
}  // namespace

asio::awaitable<Result<Request>> Client::request() {
  const auto self = shared_from_this();
  std::array<char, 4096> buffer;
  for (;;) {
    if (unread_.size() >= wire::kFrameHeaderBytes) {
      const std::size_t length = wire::announced_bytes(unread_);
      if (length > kMaxRequest || unread_[4] != kRequestFrame)
        co_return fail(ErrorCode::protocol, "warm connections: no request");
      if (unread_.size() >= wire::kFrameHeaderBytes + length) {
        const std::string payload = unread_.substr(wire::kFrameHeaderBytes, length);
        unread_.erase(0, wire::kFrameHeaderBytes + length);
        co_return read_request(payload);
      }
    }
    const auto [error, count] = co_await socket_->async_read_some(asio::buffer(buffer), kToken);
    if (error) co_return fail(ErrorCode::lost, "warm connections: the client is gone");
    unread_.append(buffer.data(), count);
  }
}

asio::awaitable<std::size_t> Client::read_some(std::span<char> buffer) {
  const auto self = shared_from_this();
  if (!unread_.empty()) {
    const std::size_t count = std::min(buffer.size(), unread_.size());
    std::memcpy(buffer.data(), unread_.data(), count);
    unread_.erase(0, count);
    co_return count;
  }
  const auto [error, count] =
      co_await socket_->async_read_some(asio::buffer(buffer.data(), buffer.size()), kToken);
  co_return error ? 0 : count;
}

asio::awaitable<void> Client::write(std::shared_ptr<std::string> bytes) {
  const auto self = shared_from_this();
  if (gone_) co_return;
  const auto [error, count] = co_await asio::async_write(*socket_, asio::buffer(*bytes), kToken);
  if (error) gone_ = true;
}

asio::awaitable<void> Client::hung_up() {
  const auto self = shared_from_this();
  if (!gone_) co_await socket_->async_wait(Socket::wait_error, kToken);
}

void Client::close() {
  gone_ = true;
  boost::system::error_code ignored;
  socket_->shutdown(Socket::shutdown_both, ignored);
  socket_->close(ignored);
}

void Talk::start(const asio::any_io_executor& executor, std::shared_ptr<KeptRunner> runner) {
  running_.emplace(executor, Clock::time_point::max());
  carrying_ = true;
  const auto self = shared_from_this();
  spawn(executor, [self, runner] { return self->carry(runner); });
}

asio::awaitable<void> Talk::stopped() {
  const auto self = shared_from_this();
  while (carrying_) {
    running_->expires_at(Clock::time_point::max());
    co_await running_->async_wait(kToken);
  }
}

/// Relays the client's bytes. If the client ends without Goodbye, sends it in its place: a runner
/// whose job is over then ends its conversation, and any other ends its ranks, as at the end of its
/// input.
asio::awaitable<void> Talk::carry(std::shared_ptr<KeptRunner> runner) {
  const auto self = shared_from_this();
  std::string buffer(kLeastCarried, '\0');
  bool good = true;
  while (good) {
    const std::size_t count = co_await client->read_some(buffer);
    if (count == 0) break;
    std::string_view bytes = std::string_view(buffer).substr(0, count);
    const auto words = std::make_shared<std::string>();
    const auto control = scan_.take(bytes, *words);
    good = control && !*control;
    if (!good || words->empty()) continue;
    const auto written = co_await runner->write(words);
    good = written.has_value();
    said_goodbye = good && scan_.at_last();
    if (count == buffer.size() && count < kMostCarried) buffer.resize(4 * count);
  }
  if (good && !said_goodbye && scan_.at_border() && !runner->is_over()) {
    const auto goodbye = std::make_shared<std::string>(wire::encode(wire::Goodbye{}));
    const auto written = co_await runner->write(goodbye);
    said_goodbye = written.has_value();
  }
  if (!said_goodbye) runner->close("its client spoke or ended in the middle of a message");
  runner->hurry(kEndingTime);
  carrying_ = false;
  running_->cancel();
}

}  // namespace sortie::launcher::warm
