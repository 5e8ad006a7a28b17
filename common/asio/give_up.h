// GiveUp: tells work that is under way that nobody wants it any more. On one I/O thread.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <utility>

namespace sortie {

class GiveUp {
  using Calls = std::list<std::function<void()>>;

 public:
  /// A call that stands until this goes.
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

  /// Once and for all. What is called must neither add nor drop a listener: it wakes who does.
  void give_up() {
    if (std::exchange(given_up_, true)) return;
    for (const auto& call : *calls_) call();
  }

  /// `wake` is called by give_up(); who comes after that asks given_up() itself.
  [[nodiscard]] Listener listen(std::function<void()> wake) {
    return {calls_, calls_->insert(calls_->end(), std::move(wake))};
  }

 private:
  bool given_up_ = false;
  std::shared_ptr<Calls> calls_ = std::make_shared<Calls>();
};

}  // namespace sortie
