// FanOut: how many hosts are being worked on at the same time. A host that has not moved a byte for
// a while still has its own deadline, but counts no more: dead hosts do not hold up living ones.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>

#include "launcher/ssh/wait_queue.h"

namespace sortie::launcher::ssh {

/// Shared by its slots; on the I/O thread only.
class FanOut : public std::enable_shared_from_this<FanOut> {
 public:
  using Clock = std::chrono::steady_clock;

  /// A place among the `width`. Gives it up when it goes.
  class Slot {
   public:
    explicit Slot(std::shared_ptr<FanOut> owner);
    ~Slot() { leave(); }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

    /// `bytes` tells how many have been moved so far; as long as that grows, the host is at work.
    void watch(std::function<std::uint64_t()> bytes) { bytes_ = std::move(bytes); }
    void leave();

   private:
    friend class FanOut;
    bool at_work(Clock::time_point now);

    std::shared_ptr<FanOut> owner_;
    std::function<std::uint64_t()> bytes_;
    std::uint64_t moved_ = 0;
    Clock::time_point last_moved_ = Clock::now();
    std::list<Slot*>::iterator place_;  // when counted
    bool counted_ = true;
  };

  FanOut(boost::asio::any_io_executor executor, std::size_t width,
         std::chrono::milliseconds patience);

  boost::asio::awaitable<std::shared_ptr<Slot>> enter();
  std::size_t active() const { return active_; }

 private:
  void admit();
  void look_around();

  const std::size_t width_;
  const std::chrono::milliseconds patience_;
  std::size_t active_ = 0;  // those that were woken and have no slot yet included
  std::list<Slot*> slots_;  // that count
  WaitQueue queue_;
  boost::asio::steady_timer timer_;  // runs while somebody waits
  bool looking_ = false;
};

}  // namespace sortie::launcher::ssh
