// StatePool: reusable caches and buffers that threads take and give back.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace sortie::trainer {

/// Thread-safe. Holds as many states as were in use at the same time.
template <class State>
class StatePool {
 public:
  std::unique_ptr<State> take() const {
    {
      const std::lock_guard lock(mutex_);
      if (!states_.empty()) {
        std::unique_ptr<State> state = std::move(states_.back());
        states_.pop_back();
        return state;
      }
    }
    return std::make_unique<State>();
  }

  void give_back(std::unique_ptr<State> state) const {
    const std::lock_guard lock(mutex_);
    states_.push_back(std::move(state));
  }

 private:
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<State>> states_;
};

}  // namespace sortie::trainer
