// Transport: messages between the ranks of a run, under all collectives. One per rank and backend;
// ranks here are those of the world.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sortie::trainer {

/// What becomes of a message that was posted. It stays where it is until it is no longer pending.
struct Message {
  enum class State : unsigned char { idle, pending, done, lost };
  std::atomic<State> state{State::idle};
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string library() const = 0;

  /// Messages with the same (sender, receiver, tag) match in the order in which they are posted,
  /// and have the same size on both sides: another size throws CommunicatorError. The bytes stay
  /// untouched while the message is pending. At most 2^30 bytes.
  virtual void send(int to, int tag, std::span<const std::byte> bytes, Message& message) = 0;
  virtual void receive(int from, int tag, std::span<std::byte> bytes, Message& message) = 0;

  /// Looks how far messages are. Never blocks.
  virtual void progress() = 0;
  /// How many messages of this rank are complete so far.
  virtual std::uint64_t completed() const = 0;
  /// Gives the core away for a moment, or until a message may have changed; `idle` is how long none
  /// has.
  virtual void pause(std::chrono::nanoseconds idle) = 0;
  /// From now on a pending message's bytes are not touched. An exception takes its owner away.
  virtual void withdraw(Message& message) = 0;
  /// Why messages to and from this rank are lost; empty where that is not known.
  virtual std::string fate_of(int rank) const = 0;
  [[noreturn]] virtual void abort(int exit_code) = 0;
};

}  // namespace sortie::trainer
