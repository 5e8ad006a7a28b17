// LinkConnection: one TCP connection to another site, from dialling or accepting to its end. It
// handles records and knows nothing of messages. Used by the I/O thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "trainer/outer/link_record.h"
#include "trainer/outer/link_sockets.h"

namespace sortie::trainer::outer {

class LinkConnection {
 public:
  using Clock = std::chrono::steady_clock;
  /// dialling: not connected yet. greeting: waits for the peer's hello. parked: the hello is for an
  /// order that has not arrived yet. confirming: waits for the first record, which proves that the
  /// peer has the key. up: works.
  enum class State { dialling, greeting, parked, confirming, up };
  /// How this end identifies itself. `key` has 32 bytes.
  struct Identity {
    std::string site;
    std::uint64_t part = 0, instance = 0, epoch = 0;
    std::string key;
  };
  /// Handles a record with a piece. If it returns false, the connection pauses and keeps the record
  /// for resume().
  using OnRecord = std::function<bool(const RecordHead&, std::span<const std::byte> piece)>;

  /// A dialled connection to `site` at `address`.
  LinkConnection(Fd socket, std::string site, std::string address);
  /// An accepted connection. Its site is known once it has sent its hello.
  explicit LinkConnection(Fd socket);

  int fd() const { return socket_.get(); }
  State state() const { return state_; }
  bool was_dialled() const { return dialled_; }
  const std::string& site() const { return site_; }
  const std::string& address() const { return address_; }
  const LinkHello& theirs() const { return theirs_; }
  Clock::time_point born() const { return born_; }
  Clock::time_point heard() const { return heard_; }
  Clock::time_point spoke() const { return spoke_; }
  bool paused() const { return paused_; }
  bool said_bye() const { return said_bye_; }
  /// The kernel's count; if there is none, the bytes of the stream.
  WireCount wire_count() const;

  /// Call when the socket of a dialled connection is writable: sends the hello. Returns an error if
  /// connecting failed.
  Result<> connected(const Identity& self);
  /// For an accepted connection with has_hello(): sends the hello and the first record.
  Result<> answer(const Identity& self);
  /// The peer's hello waits for an order of a later epoch.
  void park() { state_ = State::parked; }

  bool wants_output() const { return sent_ < outgoing_.size(); }
  /// Whether it is up, has sent everything and has not said bye.
  bool has_room() const { return state_ == State::up && !wants_output() && !said_last_; }
  /// Begins a record and returns the memory of its piece of `size` bytes, which the caller fills
  /// before seal_and_send().
  std::span<std::byte> compose(const RecordHead& head, std::size_t size);
  /// Seals the record and sends as much as the socket accepts.
  Result<> seal_and_send();
  /// Sends one record without a piece.
  Result<> send(RecordKind kind);
  Result<> write_some();

  /// Reads the available bytes and passes records to `on_record`. `self` is used to answer the
  /// hello on a dialled connection. Error: the connection is closed, or the peer does not have the
  /// key or breaks the protocol. On an accepted connection it returns after the hello, in state
  /// greeting and with has_hello().
  Result<> read_some(const Identity& self, const OnRecord& on_record);
  bool has_hello() const { return has_hello_; }
  /// Handles the kept record and those after it.
  Result<> resume(const OnRecord& on_record);

 private:
  Result<> take_hello(const Identity& self);
  Result<> begin_records(const Identity& self);
  Result<> take_records(const OnRecord& on_record);
  LinkHello hello(const Identity& self) const;
  void queue(const void* bytes, std::size_t size);

  Fd socket_;
  const bool dialled_;
  State state_;
  std::string site_, address_;
  LinkHello mine_, theirs_;
  seal::RecordCipher seals_, opens_;
  std::vector<unsigned char> outgoing_, incoming_;
  std::size_t composed_ = 0;              // begin of the record that is composed
  std::size_t sent_ = 0;                  // bytes of outgoing_ that were sent
  std::size_t begin_ = 0, end_ = 0;       // unprocessed bytes of incoming_
  std::uint64_t written_ = 0, read_ = 0;  // bytes of the stream
  bool has_hello_ = false, opened_ = false, paused_ = false;
  bool said_bye_ = false;   // the peer has
  bool said_last_ = false;  // this end has
  Clock::time_point born_, heard_, spoke_;
};

}  // namespace sortie::trainer::outer
