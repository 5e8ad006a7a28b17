// FanOut: limits the number of hosts that are being connected at the same time. A host that has not
// moved a byte for a while keeps its own deadline but no longer counts, so that dead hosts do not
// delay live ones.
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

/// Shared by its slots. Used on the I/O thread only.
class FanOut : public std::enable_shared_from_this<FanOut> {
 public:
  using Clock = std::chrono::steady_clock;

  /// One of the `width` slots. Released by the destructor.
  class Slot {
   public:
    explicit Slot(std::shared_ptr<FanOut> owner);
    ~Slot() { leave(); }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

    /// `bytes` returns the number of bytes moved so far. While it grows, the host counts as active.
    void watch(std::function<std::uint64_t()> bytes) { bytes_ = std::move(bytes); }
    void leave();

   private:
    friend class FanOut;
    bool at_work(Clock::time_point now);

    std::shared_ptr<FanOut> owner_;
    std::function<std::uint64_t()> bytes_;
    std::uint64_t moved_ = 0;
    Clock::time_point last_moved_ = Clock::now();
    std::list<Slot*>::iterator place_;  // valid if counted_
    bool counted_ = true;
  };

  FanOut(boost::asio::any_io_executor executor, std::size_t width,
         std::chrono::milliseconds patience);

  /// Waits for a free slot. First come, first served.
  boost::asio::awaitable<std::shared_ptr<Slot>> enter();
  std::size_t active() const { return active_; }

 private:
  void admit();
  void look_around();

  const std::size_t width_;
  const std::chrono::milliseconds patience_;
  std::size_t active_ = 0;  // includes woken waiters that have no slot yet
  std::list<Slot*> slots_;  // slots that count
  WaitQueue queue_;
  boost::asio::steady_timer timer_;  // runs while the queue is not empty
  bool looking_ = false;
};

}  // namespace sortie::launcher::ssh
