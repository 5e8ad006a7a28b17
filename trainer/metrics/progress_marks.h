// Where this rank is in its training, for observation from another thread (progress_reporter.h).
// The main thread sets the marks. Each costs plain stores and one read of the clock; a step has a
// few.
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

  /// Marks the beginning of `step` (from 1), in the section `data`.
  void begin_step(std::int64_t step) {
    leave();
    set(static_cast<std::uint64_t>(step), training::Section::data);
  }
  /// Marks that the current step enters `section`.
  void enter(training::Section section) {
    leave();
    set(where_.load(std::memory_order_relaxed) >> kSectionBits, section);
  }
  /// Marks progress within a long section, such as a pass of a validation.
  void tick() { ticks_.store(ticks_.load(std::memory_order_relaxed) + 1, kRelaxed); }
  /// `begun` counts the collectives that this rank has begun. It must outlive this object, or be
  /// nullptr.
  void count_collectives(const std::atomic<std::uint64_t>* begun) { begun_.store(begun); }

  /// Sets a function that the main thread calls when it leaves the section `start`, before it
  /// continues. A process that freezes after that has already reported that it started. Call on the
  /// main thread; {} = none.
  void on_started(std::function<void()> tell) { on_started_ = std::move(tell); }

  struct Seen {
    std::uint64_t step = 0;
    training::Section section = training::Section::start;
    std::uint64_t sequence = 0;  // collectives begun
    std::uint64_t ticks = 0;
    std::uint64_t own_us = 0;  // time in sections of this rank's own work
    bool operator==(const Seen&) const = default;
  };
  /// Thread-safe. Step and section are consistent with each other; the counters may be slightly
  /// newer.
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

  std::atomic<std::uint64_t> where_{0};  // step and section
  std::atomic<std::uint64_t> ticks_{0}, own_us_{0};
  std::atomic<const std::atomic<std::uint64_t>*> begun_{nullptr};
  // Used by the main thread only.
  Clock::time_point since_ = Clock::now();
  Clock::duration own_{};
  std::function<void()> on_started_;
};

}  // namespace sortie::trainer
