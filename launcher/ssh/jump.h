// ProxyJump: connections to jump hosts, shared by the hosts behind them, and TCP streams through
// them that look like sockets.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "launcher/ssh/session.h"

namespace sortie::launcher::ssh {

/// A connection to a jump host, in the making or made. Lives as long as one target behind it does.
struct JumpConnection {
  explicit JumpConnection(const boost::asio::any_io_executor& executor)
      : settled(executor, kNoDeadline) {}
  ~JumpConnection() {
    if (core) core->close();
  }
  /// False when another connection to the same host is to be made.
  bool has_room() const;

  boost::asio::steady_timer settled;  // cancelled when done
  bool done = false;
  bool full = false;  // the server has refused another stream
  int riders = 0;     // targets behind it, and those that wait for it
  Error error;
  std::shared_ptr<SessionCore> core;  // null when it failed
};

/// One target's share of a JumpConnection.
class JumpRide {
 public:
  explicit JumpRide(std::shared_ptr<JumpConnection> connection)
      : connection_(std::move(connection)) {
    ++connection_->riders;
  }
  ~JumpRide() { --connection_->riders; }
  JumpRide(const JumpRide&) = delete;
  JumpRide& operator=(const JumpRide&) = delete;

  std::shared_ptr<SessionCore> core() const { return connection_->core; }
  /// True when `error`, of a stream that could not be opened, says that the server has too many of
  /// them here and may have room on another connection. From then on this one gets no more.
  bool is_full(const Error& error);

 private:
  std::shared_ptr<JumpConnection> connection_;
};

/// Connects from `jump` to `host`:`port`. The socket is one end of a pair whose other end is pumped
/// by coroutines until either side ends.
boost::asio::awaitable<Result<Fd>> dial_through(std::shared_ptr<SessionCore> jump, std::string host,
                                                int port, Clock::time_point deadline);

}  // namespace sortie::launcher::ssh
