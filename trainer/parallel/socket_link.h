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

/// Never blocks. A message that arrives before it is wanted is kept in memory. One that belongs to
/// a lost connection is lost.
class SocketLink {
 public:
  bool open() const { return static_cast<bool>(socket_); }
  int descriptor() const { return socket_.get(); }
  /// Why the connection is no more; empty while it is, or was never made.
  const std::string& fate() const { return fate_; }
  /// Takes a connected, non-blocking socket.
  void connect(Fd socket) { socket_ = std::move(socket); }

  void send(int tag, std::span<const std::byte> bytes, Message& message);
  /// Throws CommunicatorError when what has come under the tag has another size.
  void receive(int tag, std::span<std::byte> bytes, Message& message);
  void withdraw(Message& message);

  /// Writes and reads what can be. The number of messages that are complete since the last call.
  std::uint64_t move();
  bool has_to_write() const { return !out_.empty(); }
  /// All that is pending is lost, and what comes later.
  void lose(std::string why);

 private:
  struct Header {  // as it is sent: all ranks are one build on one kind of machine
    std::uint32_t tag = 0, bytes = 0;
  };
  struct Outgoing {
    Header header;
    std::span<const std::byte> bytes;
    std::vector<std::byte> kept;  // of a message that was withdrawn on its way
    Message* message = nullptr;
    std::size_t sent = 0;  // with the header
  };
  struct Wanted {
    std::span<std::byte> bytes;
    Message* message;
  };

  void write_some();
  void read_some();
  /// The bytes of the message whose header has come go to who waits, or are kept.
  void begin_message();
  void end_message();
  void settle(Message* message, Message::State state);

  Fd socket_;
  std::string fate_;
  std::deque<Outgoing> out_;
  std::map<std::uint32_t, std::deque<Wanted>> wanted_;
  std::map<std::uint32_t, std::deque<std::vector<std::byte>>> early_;
  Header in_;                     // of the message that comes in
  std::size_t header_bytes_ = 0;  // of it so far
  std::span<std::byte> into_;
  std::size_t into_bytes_ = 0;
  Message* filling_ = nullptr;
  std::vector<std::byte> kept_in_;  // where nobody waits for it
  bool in_message_ = false, keeps_ = false;
  std::uint64_t completed_ = 0;
};

}  // namespace sortie::trainer
