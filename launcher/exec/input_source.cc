#include "launcher/exec/input_source.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>

namespace sortie::launcher {
namespace {
constexpr std::size_t kReadBytes = 64u << 10;
}

Result<std::shared_ptr<InputSource>> InputSource::open(boost::asio::any_io_executor executor,
                                                       int fd) {
  Fd mine(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!mine) return std::unexpected(os_error(errno, "--stdin: stdin", ErrorCode::usage));
  // Also a stdin that was closed when this process started.
  if ((::fcntl(mine.get(), F_GETFL) & O_ACCMODE) == O_WRONLY)
    return std::unexpected(os_error(EBADF, "--stdin: stdin", ErrorCode::usage));
  return std::shared_ptr<InputSource>(new InputSource(std::move(executor), std::move(mine)));
}

InputSource::InputSource(boost::asio::any_io_executor executor, Fd fd)
    : executor_(executor), watched_(executor), fd_(std::move(fd)) {
  struct stat info {};
  regular_ = ::fstat(fd_.get(), &info) == 0 && S_ISREG(info.st_mode);
  if (regular_) {
    const off_t at = ::lseek(fd_.get(), 0, SEEK_CUR);
    base_ = at > 0 ? static_cast<std::uint64_t>(at) : 0;
    const auto length = static_cast<std::uint64_t>(std::max<off_t>(info.st_size, 0));
    size_ = length > base_ ? length - base_ : 0;
    ended_ = true;
    return;
  }
  // A duplicate, so that it is deregistered from the reactor before `fd_` is closed.
  Fd copy(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 3));
  boost::system::error_code error;
  if (copy) watched_.assign(copy.get(), error);
  watchable_ = copy && !error;
  if (watchable_) copy.release();
}

void InputSource::start(Listener listener) {
  listener_ = std::move(listener);
  if (regular_) {
    boost::asio::post(executor_, [self = shared_from_this()] {
      if (!self->closed_) self->listener_.on_more();
    });
    // Leaves the file position at the end, as if the file had been read.
    ::lseek(fd_.get(), 0, SEEK_END);
    return;
  }
  resume();
}

void InputSource::resume() {
  if (regular_ || ended_ || waiting_ || closed_ || !listener_.wanted || !listener_.wanted()) return;
  waiting_ = true;
  const auto go_on = [self = shared_from_this()](const boost::system::error_code& error) {
    self->waiting_ = false;
    // A device that does not support polling (/dev/null) is always readable.
    if (error == boost::asio::error::operation_not_supported) self->watchable_ = false;
    if (!error || !self->watchable_) self->take();
  };
  if (watchable_)
    watched_.async_wait(boost::asio::posix::stream_descriptor::wait_read, go_on);
  else
    boost::asio::post(executor_, [go_on] { go_on({}); });
}

void InputSource::take() {
  if (closed_ || ended_) return;
  // The descriptor is shared with the parent process, so it stays blocking: poll before reading.
  pollfd ready{fd_.get(), POLLIN, 0};
  if (::poll(&ready, 1, 0) == 0) return resume();
  std::string bytes(kReadBytes, '\0');
  const ssize_t count = ::read(fd_.get(), bytes.data(), bytes.size());
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return resume();
  if (count < 0) return fail_with(os_error(errno, "read stdin"));
  if (count == 0) {
    ended_ = true;
  } else {
    bytes.resize(static_cast<std::size_t>(count));
    if (auto kept = spill_.append(bytes); !kept)
      return fail_with(with_context(std::move(kept).error(), "keep stdin"));
    size_ += bytes.size();
  }
  listener_.on_more();
  resume();
}

Result<std::string> InputSource::read(std::uint64_t offset, std::size_t limit) {
  std::string bytes(std::min<std::uint64_t>(limit, size_ - offset), '\0');
  if (!regular_) {
    SORTIE_TRY(spill_.read(offset, bytes));
    return bytes;
  }
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::pread(fd_.get(), bytes.data() + done, bytes.size() - done,
                                  static_cast<off_t>(base_ + offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::unexpected(os_error(errno, "read stdin"));
    if (count == 0) return fail(ErrorCode::io, "stdin: the file became shorter while it was read");
    done += static_cast<std::size_t>(count);
  }
  return bytes;
}

void InputSource::fail_with(Error error) {
  closed_ = true;
  listener_.on_error(std::move(error));
}

void InputSource::close() {
  closed_ = true;
  boost::system::error_code ignored;
  watched_.close(ignored);
  listener_ = {};
}

}  // namespace sortie::launcher
