// ServerGate: limits the number of unauthenticated connections to one server. sshd drops
// connections at random, before its banner, while ten or more are unauthenticated (MaxStartups
// 10:30:100). The limit is learned: it grows with every accepted connection and shrinks with every
// dropped one.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <memory>

#include "launcher/ssh/wait_queue.h"

namespace sortie::launcher::ssh {

/// Shared by its passes. Used on the I/O thread only.
class ServerGate : public std::enable_shared_from_this<ServerGate> {
 public:
  using Clock = std::chrono::steady_clock;

  /// One connection, from before its first packet until it is authenticated. At most one outcome is
  /// reported; a pass destroyed without an outcome does not change the limit.
  class Pass {
   public:
    explicit Pass(std::shared_ptr<ServerGate> owner) : owner_(std::move(owner)) {}
    ~Pass() { leave(); }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    void got_in();
    void dropped();
    /// The server does not answer at all: removes the limit, because there is no server to protect
    /// and other connections must not queue for it.
    void unreachable();
    void leave();

   private:
    std::shared_ptr<ServerGate> owner_;
    const Clock::time_point since_ = Clock::now();
    bool counted_ = true;
  };

  explicit ServerGate(boost::asio::any_io_executor executor) : queue_(std::move(executor)) {}

  /// Waits until another connection may start. First come, first served.
  boost::asio::awaitable<std::shared_ptr<Pass>> enter();
  double limit() const { return limit_; }
  /// Time of the last accepted connection; the epoch if none was.
  Clock::time_point last_in() const { return last_in_; }

 private:
  void admit();

  // Below sshd's default of ten, so that a server without other clients never drops a connection.
  double limit_ = 8;
  bool doubling_ = true;  // no drop yet: grows by one per connection, else by one per round
  int active_ = 0;        // includes woken waiters
  Clock::time_point last_in_{};
  Clock::time_point last_cut_{};  // drops of older connections are ignored
  WaitQueue queue_;
};

/// Returns the random delay before the next try. Its maximum doubles with each try, up to two
/// seconds.
std::chrono::milliseconds retry_delay(int tries);

}  // namespace sortie::launcher::ssh
