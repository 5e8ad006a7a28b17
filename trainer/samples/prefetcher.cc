#include "trainer/samples/prefetcher.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"

namespace sortie::trainer {

struct Prefetcher::State {
  struct MicroBatch {
    std::vector<std::int32_t> tokens, targets;  // [rows, length]
    Result<> outcome;
    std::exception_ptr exception;
    bool good() const { return outcome.has_value() && !exception; }
  };

  State(SampleSource& samples, const ReadingCourse& reading)
      : source(samples), course(reading), end(reading.end) {}

  Result<> read(std::int64_t first, MicroBatch& batch) {
    const auto length = static_cast<std::size_t>(course.length);
    for (std::int64_t row = 0; row < course.rows; ++row) {
      const std::size_t at = static_cast<std::size_t>(row) * length;
      SORTIE_TRY(source.sample(first + row, std::span(batch.tokens).subspan(at, length),
                               std::span(batch.targets).subspan(at, length)));
    }
    return {};
  }

  /// Body of the thread: keeps `ready` filled until it is stopped or reading fails.
  void run() {
    for (std::int64_t first = course.first;; first += course.stride) {
      MicroBatch batch;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stopped || (ready.size() < course.ahead && first < end); });
        if (stopped) return;
        if (!spare.empty()) {
          batch = std::move(spare.back());
          spare.pop_back();
        }
      }
      try {
        const auto elements = static_cast<std::size_t>(course.rows * course.length);
        batch.tokens.resize(elements);
        batch.targets.resize(elements);
        batch.outcome = read(first, batch);
      } catch (...) {
        batch.exception = std::current_exception();
      }
      const bool good = batch.good();
      const std::lock_guard lock(mutex);
      ready.push_back(std::move(batch));
      changed.notify_all();
      if (!good) return;
    }
  }

  SampleSource& source;
  const ReadingCourse course;
  std::int64_t next = 0;  // micro-batches handed out; used by the caller only
  double waited = 0.0;    // seconds; used by the caller only
  std::mutex mutex;
  std::condition_variable changed;
  std::int64_t end;  // moves when next() requests more
  bool stopped = false;
  std::deque<MicroBatch> ready;
  std::vector<MicroBatch> spare;  // buffers of micro-batches that were handed out
  std::thread thread;
};

Prefetcher::Prefetcher(SampleSource& source, const ReadingCourse& course)
    : state_(std::make_unique<State>(source, course)) {
  SORTIE_CHECK(course.rows > 0 && course.length > 0 && course.stride > 0 && course.ahead > 0,
               "{} rows of {}, stride {}, {} ahead", course.rows, course.length, course.stride,
               course.ahead);
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

Result<> Prefetcher::next(std::int64_t sample, std::span<std::int32_t> tokens,
                          std::span<std::int32_t> targets) {
  State& state = *state_;
  const std::int64_t expected = state.course.first + state.next * state.course.stride;
  SORTIE_CHECK(sample == expected, "sample {} is asked for, {} is next", sample, expected);
  State::MicroBatch batch;
  {
    std::unique_lock lock(state.mutex);
    if (state.end <= sample) {
      state.end = sample + 1;
      state.changed.notify_all();
    }
    if (state.ready.empty()) {
      const auto begin = std::chrono::steady_clock::now();
      state.changed.wait(lock, [&] { return !state.ready.empty(); });
      state.waited +=
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    if (const State::MicroBatch& front = state.ready.front(); !front.good()) {  // kept for later
      if (front.exception) std::rethrow_exception(front.exception);
      return front.outcome;
    }
    batch = std::move(state.ready.front());
    state.ready.pop_front();
    state.changed.notify_all();
  }
  ++state.next;
  SORTIE_CHECK(tokens.size() == batch.tokens.size() && targets.size() == tokens.size(),
               "{} tokens and {} targets for {}", tokens.size(), targets.size(),
               batch.tokens.size());
  std::ranges::copy(batch.tokens, tokens.begin());
  std::ranges::copy(batch.targets, targets.begin());
  const std::lock_guard lock(state.mutex);
  state.spare.push_back(std::move(batch));
  return {};
}

double Prefetcher::take_waited_seconds() {
  return std::exchange(state_->waited, 0.0);
}

}  // namespace sortie::trainer
