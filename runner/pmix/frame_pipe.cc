#include "runner/pmix/frame_pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "common/wire/codec.h"

namespace sortie::runner {
namespace {

void set_nonblocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0) fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

}  // namespace

FramePipe::FramePipe(Fd in, Fd out) : in_(std::move(in)), out_(std::move(out)) {
  set_nonblocking(in_.get());
  set_nonblocking(out_.get());
}

Result<> FramePipe::send(const wire::Message& message) {
  pending_ += wire::encode(message);
  return flush();
}

Result<> FramePipe::flush() {
  while (wants_write()) {
    const ssize_t written = write(out_.get(), pending_.data() + sent_, pending_.size() - sent_);
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return {};
      return std::unexpected(os_error(errno, "stream to the runner", ErrorCode::lost));
    }
    sent_ += static_cast<std::size_t>(written);
  }
  pending_.clear();
  sent_ = 0;
  return {};
}

Result<bool> FramePipe::fill() {
  std::array<char, 64 << 10> bytes;
  ssize_t got = 0;
  do got = read(in_.get(), bytes.data(), bytes.size());
  while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (errno == EAGAIN) return true;
    if (errno == ECONNRESET) return false;
    return std::unexpected(os_error(errno, "stream from the runner", ErrorCode::lost));
  }
  if (got == 0) {
    if (!decoder_.at_border())
      return fail(ErrorCode::protocol, "stream from the runner: it ended within a frame");
    return false;
  }
  decoder_.feed({bytes.data(), static_cast<std::size_t>(got)});
  return true;
}

Result<std::optional<wire::Message>> FramePipe::next() {
  SORTIE_ASSIGN_OR_RETURN(std::optional<wire::Frame> frame, decoder_.next());
  if (!frame) return std::nullopt;
  SORTIE_ASSIGN_OR_RETURN(wire::Message message, wire::decode(*frame));
  return message;
}

}  // namespace sortie::runner
