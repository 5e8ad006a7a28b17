// Where this rank is in its training, for who looks from another thread (progress_reporter.h). The
// main thread sets marks: plain stores and one look at the clock for each section, a few in a step.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "common/training/progress.h"

namespace sortie::trainer {

class ProgressMarks {
 public:
  using Clock = std::chrono::steady_clock;

  /// `step` begins, from 1, with its data.
  void begin_step(std::int64_t step) {
    leave();
    set(static_cast<std::uint64_t>(step), training::Section::data);
  }
  /// The step so far goes on with this.
  void enter(training::Section section) {
    leave();
    set(where_.load(std::memory_order_relaxed) >> kSectionBits, section);
  }
  /// A sign of progress within a long section: a pass of a validation, say.
  void tick() { ticks_.store(ticks_.load(std::memory_order_relaxed) + 1, kRelaxed); }
  /// Counts the collectives that this rank has begun; must outlive these marks, or nullptr.
  void count_collectives(const std::atomic<std::uint64_t>* begun) { begun_.store(begun); }

  /// Called by the main thread when it leaves `start`, before it goes on: a process that freezes
  /// after that has told that it was started. Of that thread; {} = nothing.
  void on_started(std::function<void()> tell) { on_started_ = std::move(tell); }

  struct Seen {
    std::uint64_t step = 0;
    training::Section section = training::Section::start;
    std::uint64_t sequence = 0;  // collectives begun
    std::uint64_t ticks = 0;
    std::uint64_t own_us = 0;  // in sections of this rank's own work, so far
    bool operator==(const Seen&) const = default;
  };
  /// From any thread. Step and section belong together; what is counted may be a moment newer.
  Seen look() const {
    const std::uint64_t where = where_.load(kRelaxed);
    const auto* begun = begun_.load();
    return {where >> kSectionBits,
            static_cast<training::Section>(where & ((1u << kSectionBits) - 1)),
            begun == nullptr ? 0 : begun->load(kRelaxed), ticks_.load(kRelaxed),
            own_us_.load(kRelaxed)};
  }

 private:
  static constexpr auto kRelaxed = std::memory_order_relaxed;
  static constexpr unsigned kSectionBits = 8;

  void leave() {
    const Clock::time_point now = Clock::now();
    const auto section = static_cast<training::Section>(where_.load(kRelaxed) & 0xff);
    if (training::is_own_work(section)) {
      own_ += now - since_;
      own_us_.store(static_cast<std::uint64_t>(
                        std::chrono::duration_cast<std::chrono::microseconds>(own_).count()),
                    kRelaxed);
    }
    since_ = now;
  }
  void set(std::uint64_t step, training::Section section) {
    const bool leaves_start = where_.load(kRelaxed) == 0;
    where_.store(step << kSectionBits | static_cast<std::uint64_t>(section), kRelaxed);
    if (leaves_start && on_started_) on_started_();
  }

  std::atomic<std::uint64_t> where_{0};  // step, section
  std::atomic<std::uint64_t> ticks_{0}, own_us_{0};
  std::atomic<const std::atomic<std::uint64_t>*> begun_{nullptr};
  // Of the main thread.
  Clock::time_point since_ = Clock::now();
  Clock::duration own_{};
  std::function<void()> on_started_;
};

}  // namespace sortie::trainer
