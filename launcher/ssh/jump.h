// ProxyJump: connections to jump hosts, which the hosts behind them share, and TCP streams through
// these connections, which look like sockets.
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

/// A connection to a jump host, being established or established. It lives as long as any target
/// behind it.
struct JumpConnection {
  explicit JumpConnection(const boost::asio::any_io_executor& executor)
      : settled(executor, kNoDeadline) {}
  ~JumpConnection() {
    if (core) core->close();
  }
  /// Returns false if a new target needs another connection to the same jump host.
  bool has_room() const;

  boost::asio::steady_timer settled;  // cancelled when `done` is set
  bool done = false;
  bool full = false;  // the server has refused another stream
  int riders = 0;     // targets that use it or wait for it
  Error error;
  std::shared_ptr<SessionCore> core;  // nullptr if it failed
};

/// Shared ownership of a JumpConnection by one target. Counts as a rider.
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
  /// Returns true if `error`, from opening a stream, says that the server has too many streams on
  /// this connection and may accept more on another one. The connection then gets no further
  /// streams.
  bool is_full(const Error& error);

 private:
  std::shared_ptr<JumpConnection> connection_;
};

/// Connects from the jump host to `host`:`port`. Returns one end of a socket pair; coroutines relay
/// the data of the other end until either side ends.
boost::asio::awaitable<Result<Fd>> dial_through(std::shared_ptr<SessionCore> jump, std::string host,
                                                int port, Clock::time_point deadline);

}  // namespace sortie::launcher::ssh
