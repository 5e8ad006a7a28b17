// Streams of work and the events that order them. Ops go to their context's current stream. On a
// device that computes in the caller's thread, work is done when its call returns, and neither
// streams nor events do anything. A GPU has streams of its own. A deferred context keeps the work
// in queues and does it late, the streams in any order that their events allow: what only works by
// luck of timing fails there.
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
  /// What a kind of streams knows of a point in them.
  class State {
   public:
    virtual ~State() = default;
    virtual bool poll() = 0;
    virtual void wait();
  };

  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  /// Whether it has passed. Never blocks; asked again and again, it gets there: the streams go on
  /// between one question and the next, those of a deferred context in it.
  bool poll() const { return !state_ || state_->poll(); }
  /// Blocks until it has passed.
  void wait() const {
    if (state_) state_->wait();
  }
  /// For the streams that made it; null when the event is empty.
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

/// Something beside the streams that a stream can wait for, as a collective is.
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

/// Work that was captured, to be done as often as wanted. The memory that it uses has to be as it
/// was at the capture, and in nobody else's use.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  /// Adds all of it as one to the stream that it was captured on.
  virtual void launch() = 0;
};

/// The streams of a context that does not compute in the caller's thread. One thread owns them.
class Streams {
 public:
  virtual ~Streams() = default;
  virtual Event record(StreamKind stream) = 0;
  /// What is added to the stream from now on starts after the event.
  virtual void wait(StreamKind stream, const Event& event) = 0;
  /// The same for what goes on beside the streams. May block the caller until it is complete.
  virtual void wait(StreamKind stream, std::shared_ptr<Awaited> awaited) = 0;
  /// Until all streams have done their work.
  virtual void synchronize() = 0;

  /// Whether work can be captured: written down, and not done, with that of other streams which
  /// wait for it meanwhile, and for which the stream waits in the end.
  virtual bool captures() const { return false; }
  /// Until end_capture(), of the same thread. What a capture does not allow, as taking memory of
  /// the device or waiting for it, throws DeviceError, and the capture has failed.
  virtual void begin_capture(StreamKind stream);
  /// DeviceError where it has failed.
  virtual std::unique_ptr<CapturedWork> end_capture();
  /// Ends one that is not wanted, if there is any.
  virtual void drop_capture() noexcept {}
};

/// The queues of a deferred context.
class WorkQueues final : public Streams {
 public:
  /// The order of streams is a function of the seed and of what is asked for.
  explicit WorkQueues(std::uint64_t seed)
      : state_(seed), self_(std::make_shared<WorkQueues*>(this)) {}
  ~WorkQueues() override { *self_ = nullptr; }
  WorkQueues(const WorkQueues&) = delete;
  WorkQueues& operator=(const WorkQueues&) = delete;

  /// Adds work to the end of a stream, and may do some of what waits.
  void add(StreamKind stream, std::function<void()> work);
  Event record(StreamKind stream) override;
  void wait(StreamKind stream, const Event& event) override;
  void wait(StreamKind stream, std::shared_ptr<Awaited> awaited) override;
  /// Does some of what waits, if anything can be done.
  void do_some();
  /// Does all that waits.
  void synchronize() override;
  bool idle() const;

 private:
  /// A point in these queues.
  struct Point final : Event::State {
    bool passed = false;
    std::shared_ptr<WorkQueues*> queues;  // null in it once they are gone
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
  bool running_ = false;  // an item, which may ask for an event
};

}  // namespace sortie::trainer
