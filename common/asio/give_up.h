// GiveUp: tells running work that its result is no longer needed. Not thread-safe: all calls are on
// one I/O thread.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <utility>

namespace sortie {

class GiveUp {
  using Calls = std::list<std::function<void()>>;

 public:
  /// A registered call; the destructor removes it.
  class Listener {
   public:
    Listener(Listener&& other) noexcept : calls_(std::move(other.calls_)), at_(other.at_) {}
    ~Listener() {
      if (calls_) calls_->erase(at_);
    }
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
    Listener& operator=(Listener&&) = delete;

   private:
    friend class GiveUp;
    Listener(std::shared_ptr<Calls> calls, Calls::iterator at)
        : calls_(std::move(calls)), at_(at) {}
    std::shared_ptr<Calls> calls_;
    Calls::iterator at_;
  };

  bool given_up() const { return given_up_; }

  /// Calls all listeners, on the first call only. A listener must neither add nor remove listeners;
  /// it should only wake the coroutine that waits.
  void give_up() {
    if (std::exchange(given_up_, true)) return;
    for (const auto& call : *calls_) call();
  }

  /// Registers `wake`, which give_up() calls. After give_up() it is never called: check given_up().
  [[nodiscard]] Listener listen(std::function<void()> wake) {
    return {calls_, calls_->insert(calls_->end(), std::move(wake))};
  }

 private:
  bool given_up_ = false;
  std::shared_ptr<Calls> calls_ = std::make_shared<Calls>();
};

}  // namespace sortie
