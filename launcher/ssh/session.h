// SessionCore: one libssh session on one socket, driven by the I/O thread. libssh is always in
// non-blocking mode: an operation is called repeatedly until it no longer returns "again". Between
// the calls the coroutine sleeps until the socket is ready. Makes no protocol decisions.
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

/// Shared by a connection, its channels and every coroutine running in one of them, so that these
/// may be destroyed in any order. Used on the I/O thread only.
class SessionCore : public std::enable_shared_from_this<SessionCore> {
 public:
  /// `socket` is connected and non-blocking. `keep_alive` is held until close() (the jump
  /// connection that carries the socket).
  static Result<std::shared_ptr<SessionCore>> create(boost::asio::any_io_executor executor,
                                                     Fd socket, std::shared_ptr<void> keep_alive);
  ~SessionCore();
  SessionCore(const SessionCore&) = delete;
  SessionCore& operator=(const SessionCore&) = delete;

  ssh_session_struct* session() const { return session_; }
  boost::asio::any_io_executor executor() { return activity_.get_executor(); }

  /// Calls `operation` until it returns a value other than SSH_AGAIN, and returns that value.
  /// Returns nullopt after the deadline, or if the session was closed meanwhile (closed() tells
  /// which).
  boost::asio::awaitable<std::optional<int>> drive(std::move_only_function<int()> operation,
                                                   Clock::time_point deadline = kNoDeadline);

  /// Calls ssh_connect() once: passes the descriptor to it at first, and makes the socket
  /// non-blocking again afterwards.
  int connect_step();

  /// Sends libssh's buffered data as far as the socket accepts it, and the rest in the background.
  /// For calls into libssh outside drive().
  void flush();
  /// Wakes all coroutines that sleep in drive().
  void notify();

  /// Starts the keepalive, after authentication: asks the peer for a sign of life whenever it is
  /// silent, and closes the connection if it stays silent for 15 s. Works also behind a jump host,
  /// whose own TCP connection is fine, and while no coroutine reads.
  void watch();
  /// Sets whether the connection is idle. An idle connection asks the peer only every 30 s.
  void rest(bool resting);

  /// Bytes received and sent so far.
  std::uint64_t bytes_moved() const;
  std::uint64_t bytes_received() const;

  /// Closes the connection at once: every drive() returns nullopt. libssh's state stays valid until
  /// the last owner is destroyed.
  void close();
  bool closed() const { return closed_; }
  /// Whether it was closed because the peer was silent.
  bool silent() const { return silent_; }
  /// Whether the peer or the network has closed the connection.
  bool broken() const;

  /// libssh's last error text.
  std::string last_error() const;

 private:
  SessionCore(boost::asio::any_io_executor executor, Fd socket, std::shared_ptr<void> keep_alive);
  void arm();
  bool write_pending() const;
  void look();

  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer activity_;  // never expires; cancelled to wake coroutines in drive()
  std::shared_ptr<void> keep_alive_;
  std::unique_ptr<ssh_counter_struct> counter_;
  Fd duplicate_;  // libssh's descriptor, until connect_step() passes it on
  ssh_session_struct* session_ = nullptr;
  int sleepers_ = 0;
  bool read_armed_ = false;
  bool write_armed_ = false;
  bool closed_ = false;
  bool silent_ = false;  // closed because the peer was silent
  bool resting_ = false;
  int looks_ = 0;  // consecutive looks without news
  std::uint64_t heard_ = 0;
  boost::asio::steady_timer look_timer_;
};

}  // namespace sortie::launcher::ssh
