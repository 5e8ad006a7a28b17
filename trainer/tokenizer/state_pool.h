// StatePool: what threads need for a while and leave for the next: caches, buffers.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace sortie::trainer {

/// Thread-safe. Holds as many states as threads have had one at once.
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
