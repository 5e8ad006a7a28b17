// Where this rank is in its training, for observation from another thread (progress_reporter.h).
// The main thread sets the marks. Each costs plain stores and one read of the clock; a step has a
// few. Where the rank computes on a GPU, the main thread is ahead of the work: it adds each mark to
// the GPU's stream, which passes it when the work before it is done (follow()).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "common/training/progress.h"
#include "trainer/tensor/stream_place.h"

namespace sortie::trainer {

class ProgressMarks {
 public:
  using Clock = std::chrono::steady_clock;

  /// Marks the beginning of `step` (from 1), in the section `data`.
  void begin_step(std::int64_t step) {
    leave();
    set(static_cast<std::uint64_t>(step), training::Section::data);
    if (add_) add_({.value = where_.load(kRelaxed), .kept = 0, .timed = true});
  }
  /// Marks that the current step enters `section`.
  void enter(training::Section section) {
    leave();
    const std::uint64_t before = where_.load(kRelaxed);
    set(before >> kSectionBits, section);
    // The passes of a graph mark their sections by themselves, so the stream may be in another one.
    const bool pass =
        section == training::Section::forward || section == training::Section::backward;
    if (add_ && (pass || where_.load(kRelaxed) != before))
      add_({.value = static_cast<std::uint64_t>(section),
            .kept = ~kSectionMask,
            .timed = training::is_own_work(section)});
  }
  /// Marks progress within a long section, such as a pass of a validation.
  void tick() { ticks_.store(ticks_.load(std::memory_order_relaxed) + 1, kRelaxed); }
  /// `begun` counts the collectives that this rank has begun. `waits`: the GPU has waited for other
  /// ranks in a collective for so long that it does not work; own work is then `reduce`. They must
  /// outlive this object, or be nullptr.
  void count_collectives(const std::atomic<std::uint64_t>* begun,
                         const std::atomic<bool>* waits = nullptr) {
    begun_.store(begun);
    waits_.store(waits);
  }

  /// From now on step, section and own time are those of a device's stream, which is behind the
  /// main thread. `add` adds a mark to that stream, which writes it to `place` when it gets there.
  /// Time in which the stream has nothing to do counts for the section that it is in. Main thread.
  void follow(std::shared_ptr<const StreamPlace> place,
              std::function<void(const StreamMark&)> add) {
    leave();
    if (place_owner_) own_ += std::chrono::nanoseconds(read(place_owner_->timed_ns));
    own_us_.store(microseconds(own_), kRelaxed);
    place_.store(place.get());
    place_owner_ = std::move(place);
    add_ = std::move(add);
    follows_ = true;
  }
  /// The stream ends: step and section are the main thread's again, and own time continues from the
  /// stream's. Main thread.
  void unfollow() {
    if (!follows_) return;
    follows_ = false;
    add_ = {};
    since_ = Clock::now();
  }

  /// Sets a function that the main thread calls when it leaves the section `start`, before it
  /// continues. A process that freezes after that has already reported that it started. Call on the
  /// main thread; {} = none.
  void on_started(std::function<void()> tell) { on_started_ = std::move(tell); }

  struct Seen {
    std::uint64_t step = 0;
    training::Section section = training::Section::start;
    std::uint64_t sequence = 0;  // collectives begun; on a GPU: that the GPU has reached
    std::uint64_t ticks = 0;
    std::uint64_t own_us = 0;  // time in sections of this rank's own work
    bool operator==(const Seen&) const = default;
  };
  /// Thread-safe. Step and section are consistent with each other; the counters may be slightly
  /// newer.
  Seen look() const {
    std::uint64_t where = where_.load(kRelaxed), own = own_us_.load(kRelaxed);
    if (const StreamPlace* place = place_.load()) {
      own += read(place->timed_ns) / 1000;
      // 0: the stream has not passed the first mark.
      if (const std::uint64_t there = read(place->value); follows_ && there != 0) where = there;
    }
    auto section = static_cast<training::Section>(where & kSectionMask);
    const auto* begun = begun_.load();
    const auto* waits = waits_.load();
    if (waits != nullptr && follows_ && training::is_own_work(section) && waits->load(kRelaxed))
      section = training::Section::reduce;
    return {where >> kSectionBits, section, begun == nullptr ? 0 : begun->load(kRelaxed),
            ticks_.load(kRelaxed), own};
  }

 private:
  static constexpr auto kRelaxed = std::memory_order_relaxed;
  static constexpr unsigned kSectionBits = 8;
  static constexpr std::uint64_t kSectionMask = (std::uint64_t{1} << kSectionBits) - 1;

  /// A value that a device may write at any time.
  static std::uint64_t read(const std::uint64_t& value) {
    return __atomic_load_n(&value, __ATOMIC_RELAXED);
  }
  static std::uint64_t microseconds(Clock::duration time) {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(time).count());
  }
  void leave() {
    const Clock::time_point now = Clock::now();
    const auto section = static_cast<training::Section>(where_.load(kRelaxed) & kSectionMask);
    if (!add_ && training::is_own_work(section)) {
      own_ += now - since_;
      own_us_.store(microseconds(own_), kRelaxed);
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
  std::atomic<const std::atomic<bool>*> waits_{nullptr};
  std::atomic<const StreamPlace*> place_{nullptr};  // of the last follow()
  std::atomic<bool> follows_{false};
  // Used by the main thread only.
  Clock::time_point since_ = Clock::now();
  Clock::duration own_{};  // without the stream's
  std::shared_ptr<const StreamPlace> place_owner_;
  std::function<void(const StreamMark&)> add_;  // set while follows_
  std::function<void()> on_started_;
};

}  // namespace sortie::trainer
