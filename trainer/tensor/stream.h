// Streams of work and the events that order them. Ops are added to their context's current stream.
// If the device computes in the caller's thread, work is done when its call returns, and streams
// and events are no-ops. A GPU has its own streams. A deferred context queues the work and runs it
// late, the streams in any order that their events allow, so that code which depends on lucky
// timing fails.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

namespace sortie::trainer {

/// A point in a stream. An empty event has always passed.
class Event {
 public:
  /// State of an event, implemented by each kind of streams.
  class State {
   public:
    virtual ~State() = default;
    virtual bool poll() = 0;
    virtual void wait();
  };

  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  /// True if it has passed. Never blocks. Polling repeatedly makes progress: a GPU's streams run
  /// between calls, those of a deferred context within the call.
  bool poll() const { return !state_ || state_->poll(); }
  /// Blocks until it has passed.
  void wait() const {
    if (state_) state_->wait();
  }
  /// For the streams that created it; nullptr if the event is empty.
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

/// Work outside of the streams that a stream can wait for, such as a collective.
class Awaited {
 public:
  virtual ~Awaited() = default;
  /// Makes progress; true once complete. Never blocks.
  virtual bool poll() = 0;
  /// Blocks until complete.
  virtual void wait() = 0;
};

enum class StreamKind : std::uint8_t { compute, copy, communication };
inline constexpr std::size_t kStreams = 3;

/// Captured work that can be launched any number of times. Each launch needs the memory that the
/// work used at the capture, unused by anything else.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  /// Adds the whole work as one unit to the stream on which it was captured.
  virtual void launch() = 0;
};

/// The streams of a context that does not compute in the caller's thread. Used by one thread only.
class Streams {
 public:
  virtual ~Streams() = default;
  virtual Event record(StreamKind stream) = 0;
  /// Makes work that is added to the stream from now on start after the event.
  virtual void wait(StreamKind stream, const Event& event) = 0;
  /// The same for work outside of the streams. May block the caller until that work is complete.
  virtual void wait(StreamKind stream, std::shared_ptr<Awaited> awaited) = 0;
  /// Blocks until all streams have completed their work.
  virtual void synchronize() = 0;

  /// True if work can be captured, which records it instead of running it. A capture includes work
  /// of other streams that wait for the captured stream and that it waits for in the end.
  virtual bool captures() const { return false; }
  /// Starts a capture that lasts until end_capture() on the same thread. An operation that a
  /// capture does not allow, such as allocating device memory or waiting for the device, throws
  /// DeviceError and makes the capture fail.
  virtual void begin_capture(StreamKind stream);
  /// Throws DeviceError if the capture has failed.
  virtual std::unique_ptr<CapturedWork> end_capture();
  /// Discards the current capture; no-op if there is none.
  virtual void drop_capture() noexcept {}
};

/// The queues of a deferred context.
class WorkQueues final : public Streams {
 public:
  /// The order of streams is a function of the seed and of the sequence of calls.
  explicit WorkQueues(std::uint64_t seed)
      : state_(seed), self_(std::make_shared<WorkQueues*>(this)) {}
  ~WorkQueues() override { *self_ = nullptr; }
  WorkQueues(const WorkQueues&) = delete;
  WorkQueues& operator=(const WorkQueues&) = delete;

  /// Adds work to the end of a stream and may run some of the queued work.
  void add(StreamKind stream, std::function<void()> work);
  Event record(StreamKind stream) override;
  void wait(StreamKind stream, const Event& event) override;
  void wait(StreamKind stream, std::shared_ptr<Awaited> awaited) override;
  /// Runs some of the queued work, if any is ready.
  void do_some();
  /// Runs all queued work. Blocks for work outside of the streams that it waits for.
  void synchronize() override;
  bool idle() const;

 private:
  /// A point in these queues.
  struct Point final : Event::State {
    bool passed = false;
    std::shared_ptr<WorkQueues*> queues;  // points to nullptr once the queues are destroyed
    bool poll() override;
  };
  struct Item {
    // Each may be empty.
    std::function<void()> work = {};
    std::shared_ptr<Point> after = {}, passes = {};
    std::shared_ptr<Awaited> awaited = {};
  };
  static bool can_go(const Item& item);
  bool run_one();
  std::uint64_t random();

  std::array<std::deque<Item>, kStreams> queues_;
  std::uint64_t state_;
  std::shared_ptr<WorkQueues*> self_;
  bool running_ = false;  // an item is running; it may poll an event
};

}  // namespace sortie::trainer
