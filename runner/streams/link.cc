#include "runner/streams/link.h"

#include <poll.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>

#include "common/wire/codec.h"

namespace sortie::runner {
namespace {

constexpr std::size_t kReadBytes = 64u << 10;
constexpr std::size_t kBatchBytes = 64u << 10;

}  // namespace

Result<> Link::open(Fd in, Fd out) {
  boost::system::error_code error;
  in_.assign(in.get(), error);
  if (error) return fail(ErrorCode::io, "frame input is no pipe or socket: " + error.message());
  in.release();
  out_.assign(out.get(), error);
  if (error) return fail(ErrorCode::io, "frame output is no pipe or socket: " + error.message());
  out.release();
  touch();
  return {};
}

Result<> Link::reopen(Fd in, Fd out) {
  close();
  ++generation_;
  decoder_ = wire::FrameDecoder();
  writing_ = false;
  SORTIE_TRY(open(std::move(in), std::move(out)));
  broken_ = false;
  return {};
}

std::pair<Fd, Fd> Link::release() {
  // Release instead of close: the descriptors stay in use by another process.
  Fd in(in_.release()), out(out_.release());
  ++generation_;
  broken_ = true;
  wake_.notify();
  return {std::move(in), std::move(out)};
}

boost::asio::awaitable<Result<std::optional<wire::Message>>> Link::read() {
  std::array<char, kReadBytes> buffer;
  for (;;) {
    auto frame = decoder_.next();
    if (!frame) co_return std::unexpected(std::move(frame).error());
    if (frame->has_value()) {
      touch();
      auto message = wire::decode(**frame);
      if (!message) co_return std::unexpected(std::move(message).error());
      co_return std::optional<wire::Message>(std::move(*message));
    }
    const unsigned mine = generation_;
    const auto [error, count] = co_await in_.async_read_some(boost::asio::buffer(buffer), kToken);
    // These bytes belong to the previous connection, whose decoder is gone.
    if (generation_ != mine) co_return fail(ErrorCode::lost, "read: there is another connection");
    if (error == boost::asio::error::eof) {
      if (!decoder_.at_border()) co_return fail(ErrorCode::lost, "stream ends inside a frame");
      co_return std::optional<wire::Message>();
    }
    if (error) co_return fail(ErrorCode::lost, "read: " + error.message());
    decoder_.feed(std::string_view(buffer.data(), count));
  }
}

bool Link::readable() const {
  pollfd polled = {const_cast<Link*>(this)->in_.native_handle(), POLLIN, 0};
  return ::poll(&polled, 1, 0) > 0;
}

void Link::send(const wire::Message& message) {
  if (broken_) return;
  queue_.push_back(wire::encode(message));
  queued_bytes_ += queue_.back().size();
  wake_.notify();
}

std::string Link::take_bytes() {
  std::string bytes;
  while (!queue_.empty() && bytes.size() < kBatchBytes) {
    queued_bytes_ -= queue_.front().size();
    if (bytes.empty())
      bytes = std::move(queue_.front());
    else
      bytes += queue_.front();
    queue_.pop_front();
  }
  if (bytes.empty() && source_) {
    if (const std::optional<wire::Output> chunk = source_()) return wire::encode(*chunk);
    // The source may have queued a message (RankExited after the last byte).
    if (!queue_.empty()) return take_bytes();
  }
  return bytes;
}

boost::asio::awaitable<void> Link::write_loop() {
  const unsigned mine = generation_;
  while (!broken_ && generation_ == mine) {
    const std::string bytes = take_bytes();
    writing_ = !bytes.empty();
    if (!writing_) {
      idle_.notify();
      co_await wake_.wait();
      continue;
    }
    const auto [error, count] =
        co_await boost::asio::async_write(out_, boost::asio::buffer(bytes), kToken);
    if (error && generation_ == mine) close();
  }
  idle_.notify();
}

boost::asio::awaitable<void> Link::flush(std::chrono::steady_clock::duration limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!broken_ && (writing_ || !queue_.empty())) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) co_return;
    co_await idle_.wait(deadline - now);
  }
}

void Link::close() {
  broken_ = true;
  queue_.clear();
  queued_bytes_ = 0;
  boost::system::error_code ignored;
  in_.close(ignored);
  out_.close(ignored);
  wake_.notify();
}

}  // namespace sortie::runner
