#include "launcher/ssh/session.h"

#include <fcntl.h>
#include <libssh/libssh.h>
#include <libssh/server.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>

#include "common/asio/token.h"
#include "common/base/check.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
namespace {

// Three looks without news close a connection: at most 14 s after the last byte.
constexpr std::chrono::milliseconds kLook{3500};
constexpr int kLooks = 3;
// Interval for idle connections, so that thousands of them cost almost nothing.
constexpr std::chrono::milliseconds kRestingLook{30'000};

struct Sleeper {
  explicit Sleeper(int& count) : count_(count) { ++count_; }
  ~Sleeper() { --count_; }
  int& count_;
};

}  // namespace

SessionCore::SessionCore(asio::any_io_executor executor, Fd socket,
                         std::shared_ptr<void> keep_alive)
    : socket_(executor, socket.release()),
      activity_(executor, kNoDeadline),
      keep_alive_(std::move(keep_alive)),
      counter_(std::make_unique<ssh_counter_struct>()),
      look_timer_(executor) {}

Result<std::shared_ptr<SessionCore>> SessionCore::create(asio::any_io_executor executor, Fd socket,
                                                         std::shared_ptr<void> keep_alive) {
  std::shared_ptr<SessionCore> core(
      new SessionCore(std::move(executor), std::move(socket), std::move(keep_alive)));
  // libssh closes its descriptor itself on some errors. It gets a duplicate, so that it can never
  // close the descriptor that the reactor has registered (whose number the kernel could then
  // reuse).
  core->duplicate_.reset(::fcntl(core->socket_.native_handle(), F_DUPFD_CLOEXEC, 0));
  if (!core->duplicate_)
    return std::unexpected(os_error(errno, "duplicate a socket; raise `ulimit -n`"));
  core->session_ = ssh_new();
  if (!core->session_) return fail(ErrorCode::internal, "ssh_new: out of memory");
  ssh_set_blocking(core->session_, 0);
  ssh_set_counters(core->session_, core->counter_.get(), nullptr);
  return core;
}

SessionCore::~SessionCore() {
  close();
  if (session_) ssh_free(session_);
}

int SessionCore::connect_step() {
  if (duplicate_) {
    const int fd = duplicate_.release();
    SORTIE_CHECK(ssh_options_set(session_, SSH_OPTIONS_FD, &fd) == SSH_OK);
  }
  const int status = ssh_connect(session_);
  // libssh 0.10 makes the socket blocking after connecting; a full send buffer would then block the
  // I/O thread. It works with a non-blocking socket: it sends once per POLLOUT.
  ::fcntl(socket_.native_handle(), F_SETFL, O_NONBLOCK);
  return status;
}

void SessionCore::close() {
  if (closed_) return;
  closed_ = true;
  ::shutdown(socket_.native_handle(), SHUT_RDWR);
  // release() removes the socket from epoll explicitly. close() would rely on the kernel, which
  // keeps the registration while libssh's duplicate is open.
  Fd(socket_.release()).reset();
  activity_.cancel();
  look_timer_.cancel();
  keep_alive_.reset();
}

std::uint64_t SessionCore::bytes_moved() const {
  return counter_->in_bytes + counter_->out_bytes;
}

std::uint64_t SessionCore::bytes_received() const {
  return counter_->in_bytes;
}

void SessionCore::watch() {
  look_timer_.expires_after(resting_ ? kRestingLook : kLook);
  look_timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    if (const auto core = weak.lock(); core && !error && !core->closed_) core->look();
  });
}

void SessionCore::rest(bool resting) {
  if (closed_ || resting_ == resting) return;
  resting_ = resting;
  looks_ = 0;
  watch();
}

// Unread bytes in the socket count as a sign of life, even if no coroutine reads them. Counts looks
// instead of seconds, because this process itself may have been suspended.
void SessionCore::look() {
  int unread = 0;
  ::ioctl(socket_.native_handle(), FIONREAD, &unread);
  const std::uint64_t heard = counter_->in_bytes + static_cast<std::uint64_t>(unread);
  if (heard != heard_) {
    heard_ = heard;
    looks_ = 0;
  } else if (++looks_ == kLooks) {
    silent_ = true;
    close();
    return;
  } else if (!broken()) {
    ssh_send_keepalive(session_);
    flush();
  }
  watch();
}

std::string SessionCore::last_error() const {
  return ssh_get_error(session_);
}

bool SessionCore::broken() const {
  return (ssh_get_status(session_) & (SSH_CLOSED | SSH_CLOSED_ERROR)) != 0;
}

bool SessionCore::write_pending() const {
  return !broken() && (ssh_get_status(session_) & SSH_WRITE_PENDING) != 0;
}

void SessionCore::notify() {
  if (sleepers_ > 0) activity_.cancel();
}

void SessionCore::flush() {
  if (closed_) return;
  const auto before = counter_->in_bytes;
  if (write_pending()) ssh_blocking_flush(session_, 0);
  if (counter_->in_bytes != before) notify();
  arm();
}

// The handlers keep the core alive. close() cancels them, so there is no permanent cycle.
void SessionCore::arm() {
  if (closed_) return;
  if (!read_armed_ && sleepers_ > 0) {
    read_armed_ = true;
    socket_.async_wait(asio::posix::stream_descriptor::wait_read,
                       [self = shared_from_this()](const boost::system::error_code&) {
                         self->read_armed_ = false;
                         self->notify();
                       });
  }
  if (!write_armed_ && write_pending()) {
    write_armed_ = true;
    socket_.async_wait(asio::posix::stream_descriptor::wait_write,
                       [self = shared_from_this()](const boost::system::error_code&) {
                         self->write_armed_ = false;
                         self->flush();
                         self->notify();
                       });
  }
}

asio::awaitable<std::optional<int>> SessionCore::drive(std::move_only_function<int()> operation,
                                                       Clock::time_point deadline) {
  const auto self = shared_from_this();
  std::optional<asio::steady_timer> guard;
  while (!closed_) {
    const auto before = counter_->in_bytes;
    int status = operation();
    if (status == SSH_AGAIN && write_pending()) ssh_blocking_flush(session_, 0);
    const bool progress = counter_->in_bytes != before;
    // This call may have read a packet for another sleeper.
    if (progress) notify();
    if (status == SSH_AGAIN && broken()) status = SSH_ERROR;  // it would never end
    if (status != SSH_AGAIN) {
      if (write_pending()) arm();
      co_return status;
    }
    if (Clock::now() >= deadline) co_return std::nullopt;
    // libssh reads at most 4 KiB from the socket per call.
    if (progress) continue;
    if (!guard && deadline != kNoDeadline) {
      guard.emplace(executor(), deadline);
      guard->async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
        if (const auto core = weak.lock(); core && !error) core->notify();
      });
    }
    const Sleeper sleeper(sleepers_);
    arm();
    co_await activity_.async_wait(kToken);
  }
  co_return std::nullopt;
}

}  // namespace sortie::launcher::ssh
