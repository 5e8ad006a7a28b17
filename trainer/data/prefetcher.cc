#include "trainer/data/prefetcher.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace sortie::trainer {

struct Prefetcher::State {
  State(Dataset& source, const BatchSlice& first) : dataset(source), slice(first) {}

  /// Body of the thread: keep `ready` filled until stopped or failed.
  void run() {
    for (;;) {
      Result<> result = dataset.read(slice, filling);
      slice.consumed += static_cast<std::uint64_t>(slice.dp_size * slice.rows);
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !full || stopped; });
      if (stopped) return;
      if (!result) {
        error = std::move(result).error();
      } else {
        std::swap(filling, ready);
      }
      full = true;
      changed.notify_all();
      if (error) return;
    }
  }

  Dataset& dataset;
  BatchSlice slice;  // touched by the thread only
  Batch filling;     // touched by the thread only
  std::mutex mutex;
  std::condition_variable changed;
  bool full = false;  // `ready` or `error` is set
  bool stopped = false;
  Batch ready;
  std::optional<Error> error;
  Batch given;  // touched by the caller only
  std::thread thread;
};

Prefetcher::Prefetcher(Dataset& dataset, const BatchSlice& first)
    : state_(std::make_unique<State>(dataset, first)) {
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopped = true;
    state_->changed.notify_all();
  }
  state_->thread.join();
}

Result<const Batch*> Prefetcher::next() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->full; });
  if (state_->error) return std::unexpected(*state_->error);
  std::swap(state_->ready, state_->given);
  state_->full = false;
  state_->changed.notify_all();
  return &state_->given;
}

}  // namespace sortie::trainer
