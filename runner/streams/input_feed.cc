#include "runner/streams/input_feed.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/pipe.h"

namespace sortie::runner {

Result<Fd> InputFeed::open() {
  Result<Pipe> pipe = make_pipe();
  if (!pipe) return std::unexpected(with_context(pipe.error(), "pipe for stdin"));
  auto& [theirs, ours] = *pipe;
  // Only our end: the rank's end is another open file description and stays blocking.
  ::fcntl(ours.get(), F_SETFL, O_NONBLOCK);
  boost::system::error_code error;
  pipe_.assign(ours.get(), error);
  if (error) return fail(ErrorCode::spawn, "epoll: " + error.message());
  ours.release();
  return std::move(theirs);
}

Result<> InputFeed::take(const wire::Input& input) {
  if (ended_) return fail(ErrorCode::protocol, "Input after its end");
  ended_ = input.eof != 0;
  if (!pipe_.is_open()) return {};  // sent before the launcher received that InputCredit
  if (queued_bytes_ + input.bytes.size() > window_)
    return fail(ErrorCode::protocol, fmt::format("{} bytes of Input for a window of {}",
                                                 queued_bytes_ + input.bytes.size(), window_));
  if (!input.bytes.empty()) {
    queued_bytes_ += input.bytes.size();
    queue_.push_back(input.bytes);
  }
  if (!waiting_) write_some();
  return {};
}

void InputFeed::await_room() {
  waiting_ = true;
  pipe_.async_wait(boost::asio::posix::stream_descriptor::wait_write,
                   [this](const boost::system::error_code& error) {
                     waiting_ = false;
                     if (!error) write_some();
                   });
}

void InputFeed::write_some() {
  std::uint64_t done = 0;
  bool closed = false;
  while (!queue_.empty()) {
    const std::string& front = queue_.front();
    const ssize_t count = ::write(pipe_.native_handle(), front.data() + written_of_front_,
                                  front.size() - written_of_front_);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      await_room();
      break;
    }
    if (count < 0) {
      closed = true;
      done += queued_bytes_;
      break;
    }
    done += static_cast<std::uint64_t>(count);
    queued_bytes_ -= static_cast<std::uint64_t>(count);
    written_of_front_ += static_cast<std::size_t>(count);
    if (written_of_front_ < front.size()) continue;
    queue_.pop_front();
    written_of_front_ = 0;
  }
  if (closed || (queue_.empty() && ended_)) close();
  if (done > 0 || closed) on_credit_({done, static_cast<std::uint8_t>(closed ? 1 : 0)});
}

void InputFeed::close() {
  queue_.clear();
  queued_bytes_ = written_of_front_ = 0;
  boost::system::error_code ignored;
  pipe_.close(ignored);
}

}  // namespace sortie::runner
