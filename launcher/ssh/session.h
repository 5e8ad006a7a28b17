// SessionCore: one libssh session on one socket, driven by the I/O thread. libssh is always in
// non-blocking mode: an operation is called again and again until it stops saying "again", and
// between the calls the coroutine sleeps until the socket has news. Holds no protocol decisions.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"

struct ssh_session_struct;
struct ssh_counter_struct;

namespace sortie::launcher::ssh {

using Clock = std::chrono::steady_clock;
inline constexpr Clock::time_point kNoDeadline = Clock::time_point::max();

/// Shared by a connection, its channels and every coroutine that is inside one of them, so that
/// any of these may go first. All members are for the I/O thread only.
class SessionCore : public std::enable_shared_from_this<SessionCore> {
 public:
  /// `socket` is connected and non-blocking. `keep_alive` is kept as long as the session (the jump
  /// host that carries it).
  static Result<std::shared_ptr<SessionCore>> create(boost::asio::any_io_executor executor,
                                                     Fd socket, std::shared_ptr<void> keep_alive);
  ~SessionCore();
  SessionCore(const SessionCore&) = delete;
  SessionCore& operator=(const SessionCore&) = delete;

  ssh_session_struct* session() const { return session_; }
  boost::asio::any_io_executor executor() { return activity_.get_executor(); }

  /// Calls `operation` until it returns something else than SSH_AGAIN and returns that; nullopt
  /// when the deadline passed or the session was closed under it (closed() tells which).
  boost::asio::awaitable<std::optional<int>> drive(std::move_only_function<int()> operation,
                                                   Clock::time_point deadline = kNoDeadline);

  /// One call of ssh_connect(), which has a descriptor to be given and a socket mode to be mended.
  int connect_step();

  /// Sends what libssh has buffered as far as the socket takes it, and keeps sending in the
  /// background; for calls into libssh outside drive().
  void flush();
  /// Wakes everything that sleeps in drive().
  void notify();

  /// From now on (signed in) the other side is asked for a sign of life whenever it is silent, and
  /// the connection ends when none comes within 15 s: also behind a jump host, whose own TCP
  /// connection is fine, and also while nothing is being read.
  void watch();
  /// Nobody waits for the other side (or somebody does again): it is asked every 30 s only.
  void rest(bool resting);

  /// Bytes received and sent so far.
  std::uint64_t bytes_moved() const;
  std::uint64_t bytes_received() const;

  /// Ends the connection at once: every drive() returns nullopt. libssh's state stays valid until
  /// the last owner is gone.
  void close();
  bool closed() const { return closed_; }
  /// Why closed(): the other side was silent, rather than somebody here ended it.
  bool silent() const { return silent_; }
  /// The other side, or the network, has ended it.
  bool broken() const;

  /// The last error text of libssh.
  std::string last_error() const;

 private:
  SessionCore(boost::asio::any_io_executor executor, Fd socket, std::shared_ptr<void> keep_alive);
  void arm();
  bool write_pending() const;
  void look();

  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer activity_;  // never expires; cancelled to wake the sleepers
  std::shared_ptr<void> keep_alive_;
  std::unique_ptr<ssh_counter_struct> counter_;
  Fd duplicate_;  // libssh's descriptor, until ssh_connect() takes it
  ssh_session_struct* session_ = nullptr;
  int sleepers_ = 0;
  bool read_armed_ = false;
  bool write_armed_ = false;
  bool closed_ = false;
  bool silent_ = false;  // closed because no heartbeat came
  bool resting_ = false;
  int looks_ = 0;  // without news
  std::uint64_t heard_ = 0;
  boost::asio::steady_timer look_timer_;
};

}  // namespace sortie::launcher::ssh
