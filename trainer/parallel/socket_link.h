// SocketLink: the messages between this rank and one other over a TCP connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "trainer/parallel/transport.h"

namespace sortie::trainer {

/// Never blocks. A message that arrives before its receive is posted is kept in memory. The pending
/// messages of a lost connection are lost.
class SocketLink {
 public:
  bool open() const { return static_cast<bool>(socket_); }
  int descriptor() const { return socket_.get(); }
  /// Why the connection was lost; empty if it is open or was never made.
  const std::string& fate() const { return fate_; }
  /// Takes a connected, non-blocking socket.
  void connect(Fd socket) { socket_ = std::move(socket); }

  void send(int tag, std::span<const std::byte> bytes, Message& message);
  /// Throws CommunicatorError if the message that arrived for the tag has another size.
  void receive(int tag, std::span<std::byte> bytes, Message& message);
  void withdraw(Message& message);

  /// Writes and reads as much as possible. Returns the number of messages completed since the last
  /// call.
  std::uint64_t move();
  bool has_to_write() const { return !out_.empty(); }
  /// Closes the connection: pending and later messages are lost. No-op if it is lost already.
  void lose(std::string why);

 private:
  struct Header {  // sent as raw bytes: all ranks run one build on one kind of machine
    std::uint32_t tag = 0, bytes = 0;
  };
  struct Outgoing {
    Header header;
    std::span<const std::byte> bytes;
    std::vector<std::byte> kept;  // of a message that was withdrawn before it was sent
    Message* message = nullptr;
    std::size_t sent = 0;  // including the header
  };
  struct Wanted {
    std::span<std::byte> bytes;
    Message* message;
  };

  void write_some();
  void read_some();
  /// Called when a header is complete: directs the bytes of its message to the posted receive, or
  /// to a buffer if there is none.
  void begin_message();
  void end_message();
  void settle(Message* message, Message::State state);

  Fd socket_;
  std::string fate_;
  std::deque<Outgoing> out_;
  std::map<std::uint32_t, std::deque<Wanted>> wanted_;
  std::map<std::uint32_t, std::deque<std::vector<std::byte>>> early_;
  Header in_;                     // of the message being received
  std::size_t header_bytes_ = 0;  // of in_, received so far
  std::span<std::byte> into_;
  std::size_t into_bytes_ = 0;
  Message* filling_ = nullptr;
  std::vector<std::byte> kept_in_;  // of a message without a posted receive
  bool in_message_ = false, keeps_ = false;
  std::uint64_t completed_ = 0;
};

}  // namespace sortie::trainer
