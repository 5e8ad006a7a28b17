// Streams of work and the events that order them. Ops go to their context's current stream. On a
// device that computes in the caller's thread, work is done when its call returns, and neither
// streams nor events do anything. A deferred context keeps the work in queues and does it late, the
// streams in any order that their events allow: what only works by luck of timing fails there.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

namespace sortie::trainer {

/// A point in a stream. An empty one has passed.
class Event {
 public:
  Event() = default;

 private:
  friend class WorkQueues;
  std::shared_ptr<bool> passed_;
};

enum class StreamKind : std::uint8_t { compute, copy, communication };
inline constexpr std::size_t kStreams = 3;

/// The queues of a deferred context. One thread owns them.
class WorkQueues {
 public:
  /// The order of streams is a function of the seed and of what is asked for.
  explicit WorkQueues(std::uint64_t seed) : state_(seed) {}

  /// Adds work to the end of a stream, and may do some of what waits.
  void add(StreamKind stream, std::function<void()> work);
  Event record(StreamKind stream);
  /// What is added to the stream from now on starts after the event.
  void wait(StreamKind stream, const Event& event);
  /// Does all that waits.
  void synchronize();
  bool idle() const;

 private:
  struct Item {
    std::function<void()> work;           // may be empty
    std::shared_ptr<bool> after, passes;  // may be null
  };
  bool run_one();
  std::uint64_t random();

  std::array<std::deque<Item>, kStreams> queues_;
  std::uint64_t state_;
};

}  // namespace sortie::trainer
