// ServerGate: how many connections to one server may be on their way in. sshd drops connections at
// random once ten are not signed in yet (MaxStartups 10:30:100), before it has said anything. What
// a server takes is learned: up with every one that gets in, down with every one that is dropped.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <memory>

#include "launcher/ssh/wait_queue.h"

namespace sortie::launcher::ssh {

/// Shared by its passes; on the I/O thread only.
class ServerGate : public std::enable_shared_from_this<ServerGate> {
 public:
  using Clock = std::chrono::steady_clock;

  /// One connection, from before its first packet until it is signed in. Says how it went at most
  /// once; what goes without a word has taught nothing.
  class Pass {
   public:
    explicit Pass(std::shared_ptr<ServerGate> owner) : owner_(std::move(owner)) {}
    ~Pass() { leave(); }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    void got_in();
    void dropped();
    /// Nothing answers at all: there is nobody to go easy on, and nobody to wait for.
    void unreachable();
    void leave();

   private:
    std::shared_ptr<ServerGate> owner_;
    const Clock::time_point since_ = Clock::now();
    bool counted_ = true;
  };

  explicit ServerGate(boost::asio::any_io_executor executor) : queue_(std::move(executor)) {}

  boost::asio::awaitable<std::shared_ptr<Pass>> enter();
  double limit() const { return limit_; }
  /// When one got in; the epoch when none has.
  Clock::time_point last_in() const { return last_in_; }

 private:
  void admit();

  // Below the ten that every sshd takes, so that a server that is left alone never drops one.
  double limit_ = 8;
  bool doubling_ = true;  // no drop seen yet: up by one per connection, else by one per round
  int active_ = 0;        // those that were woken included
  Clock::time_point last_in_{};
  Clock::time_point last_cut_{};  // a drop of a connection that is older says nothing new
  WaitQueue queue_;
};

/// How long to wait before the next try: doubling, up to two seconds, and never in step with
/// others.
std::chrono::milliseconds retry_delay(int tries);

}  // namespace sortie::launcher::ssh
