// LinkConnection: one TCP connection to a site, from dialling or accepting to its end. Used by the
// I/O thread alone; it knows nothing of messages.
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
  /// dialling: not connected yet; greeting: waits for the other's hello; parked: that hello is
  /// here, but not the order that it is about; confirming: waits for the first record, which proves
  /// that the other has the key; up: works.
  enum class State { dialling, greeting, parked, confirming, up };
  /// What ends are told of themselves; `key` has 32 bytes.
  struct Identity {
    std::string site;
    std::uint64_t part = 0, instance = 0, epoch = 0;
    std::string key;
  };
  /// False: the record is kept, and comes again after resume().
  using OnRecord = std::function<bool(const RecordHead&, std::span<const std::byte> piece)>;

  /// Dialled, to `site` at `address`.
  LinkConnection(Fd socket, std::string site, std::string address);
  /// Accepted: its site is known when it has said hello.
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
  /// What the kernel has counted, else the bytes of the stream.
  WireCount wire_count() const;

  /// The socket of a dialled one can be written to: connected, hello goes out. Error: it is not.
  Result<> connected(const Identity& self);
  /// Of an accepted one that has their hello: hello and first record go out.
  Result<> answer(const Identity& self);
  /// Their hello has come and waits for an order of a later epoch.
  void park() { state_ = State::parked; }

  bool wants_output() const { return sent_ < outgoing_.size(); }
  /// Up, and nothing waits to be sent.
  bool has_room() const { return state_ == State::up && !wants_output() && !said_last_; }
  /// Room for a piece of `size` bytes, which the caller fills before seal().
  std::span<std::byte> compose(const RecordHead& head, std::size_t size);
  /// Seals what was composed and sends as much as the socket takes.
  Result<> seal_and_send();
  /// One record without a piece.
  Result<> send(RecordKind kind);
  Result<> write_some();

  /// Reads what is there and hands records on. `self`: for the reply to a hello of a dialled one.
  /// Error: closed, or what came is not from the holder of the key. After a hello of an accepted
  /// one: returns, its state is greeting and has_hello().
  Result<> read_some(const Identity& self, const OnRecord& on_record);
  bool has_hello() const { return has_hello_; }
  /// The record that was kept, and what is behind it.
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
  std::size_t composed_ = 0;              // where the record that is composed begins
  std::size_t sent_ = 0;                  // of outgoing_
  std::size_t begin_ = 0, end_ = 0;       // what of incoming_ was received and not taken
  std::uint64_t written_ = 0, read_ = 0;  // bytes of the stream
  bool has_hello_ = false, opened_ = false, paused_ = false;
  bool said_bye_ = false;   // the other one
  bool said_last_ = false;  // this one
  Clock::time_point born_, heard_, spoke_;
};

}  // namespace sortie::trainer::outer
