#include "launcher/warm/warm_channel.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <utility>

#include "common/asio/token.h"

namespace sortie::launcher::warm {
namespace asio = boost::asio;

namespace {
constexpr std::size_t kLeastBuffer = 4u << 10, kMostBuffer = 64u << 10;
}  // namespace

Error WarmStream::lost(std::string_view what) const {
  return {ErrorCode::lost,
          closed_ ? fmt::format("{}: the connection was closed here", what)
                  : fmt::format("{}: the background process that keeps the connection, or the "
                                "connection, is gone; see `sortie connections ls`",
                                what)};
}

asio::awaitable<Result<WarmStream::Answer>> WarmStream::next(std::chrono::milliseconds limit) {
  const auto self = shared_from_this();
  const auto late = std::make_shared<bool>(false);
  asio::steady_timer timer(socket_.get_executor());
  if (limit.count() > 0) {
    timer.expires_after(limit);
    timer.async_wait([self, late](const boost::system::error_code& cancelled) {
      if (cancelled) return;
      *late = true;
      self->close();
    });
  }
  for (;;) {
    auto frame = decoder_.next();
    if (!frame) co_return std::unexpected(std::move(frame).error());
    if (*frame) co_return Answer{static_cast<Record>((*frame)->type), std::move((*frame)->payload)};
    if (buffer_.empty()) buffer_.resize(kLeastBuffer);
    const auto [error, count] = co_await socket_.async_read_some(asio::buffer(buffer_), kToken);
    if (*late)
      co_return fail(ErrorCode::timeout,
                     "the background process that keeps connections does not "
                     "answer");
    if (error) co_return std::unexpected(lost("read"));
    decoder_.feed(std::string_view(buffer_).substr(0, count));
    if (count == buffer_.size() && count < kMostBuffer) buffer_.resize(4 * count);
  }
}

asio::awaitable<Result<std::size_t>> WarmStream::read_some(std::span<char> buffer) {
  const auto self = shared_from_this();
  while (read_ == data_.size()) {
    if (ended_) co_return std::size_t{0};
    auto answer = co_await next(std::chrono::milliseconds(0));
    if (!answer) co_return std::unexpected(std::move(answer).error());
    if (answer->type == Record::data) {
      data_ = std::move(answer->payload);
      read_ = 0;
    } else if (answer->type == Record::errors) {
      errors_ = std::move(answer->payload);
    } else if (answer->type == Record::ended) {
      auto status = read_ended(answer->payload);
      if (!status) co_return std::unexpected(std::move(status).error());
      ended_ = *status;
    } else {
      co_return fail(ErrorCode::protocol, "warm connections: an unexpected record");
    }
  }
  const std::size_t count = std::min(buffer.size(), data_.size() - read_);
  std::memcpy(buffer.data(), data_.data() + read_, count);
  read_ += count;
  co_return count;
}

asio::awaitable<Result<>> WarmStream::write(std::string_view bytes) {
  const auto self = shared_from_this();
  const auto [error, count] =
      co_await asio::async_write(socket_, asio::buffer(bytes.data(), bytes.size()), kToken);
  if (error) co_return std::unexpected(lost("write"));
  co_return Result<>{};
}

asio::awaitable<Result<ProcessStatus>> WarmStream::wait() {
  const auto self = shared_from_this();
  if (ended_) co_return *ended_;
  co_return std::unexpected(lost("wait"));
}

void WarmStream::close() {
  if (std::exchange(closed_, true)) return;
  boost::system::error_code ignored;
  socket_.shutdown(Socket::shutdown_both, ignored);
  socket_.close(ignored);
}

}  // namespace sortie::launcher::warm
