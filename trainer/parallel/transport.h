// Transport: messages between the ranks of a run, on which all collectives are built. One object
// per rank. Ranks here are those of the world.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sortie::trainer {

/// State of a posted message. It must stay at its address while it is pending.
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

  /// Messages with the same (sender, receiver, tag) match in the order in which they are posted.
  /// They must have the same size on both sides; otherwise CommunicatorError is thrown. The bytes
  /// must not be changed or freed while the message is pending. At most 2^30 bytes.
  virtual void send(int to, int tag, std::span<const std::byte> bytes, Message& message) = 0;
  virtual void receive(int from, int tag, std::span<std::byte> bytes, Message& message) = 0;

  /// Makes progress and updates the states of messages. Never blocks.
  virtual void progress() = 0;
  /// Number of messages of this rank that are complete so far.
  virtual std::uint64_t completed() const = 0;
  /// Yields the core for a moment, or sleeps until a message may have changed. `idle` is the time
  /// in which none has.
  virtual void pause(std::chrono::nanoseconds idle) = 0;
  /// Makes the transport no longer access the bytes of a pending message, for example because an
  /// exception destroys its owner.
  virtual void withdraw(Message& message) = 0;
  /// Why messages to and from this rank are lost; empty if unknown.
  virtual std::string fate_of(int rank) const = 0;
  [[noreturn]] virtual void abort(int exit_code) = 0;
};

}  // namespace sortie::trainer
