#include "trainer/outer/link_connection.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>

#include "trainer/outer/link_sockets.h"

namespace sortie::trainer::outer {
namespace {

/// Several records: a system call reads what is available.
constexpr std::size_t kIncomingBytes = 4 * (kRecordLengthBytes + kMaxSealedBytes);

std::string name_in(const std::array<char, kLinkNameBytes>& name) {
  return {name.data(), ::strnlen(name.data(), name.size())};
}

}  // namespace

LinkConnection::LinkConnection(Fd socket, std::string site, std::string address)
    : socket_(std::move(socket)),
      dialled_(true),
      state_(State::dialling),
      site_(std::move(site)),
      address_(std::move(address)),
      incoming_(kIncomingBytes),
      born_(Clock::now()),
      heard_(born_),
      spoke_(born_) {}

LinkConnection::LinkConnection(Fd socket)
    : socket_(std::move(socket)),
      dialled_(false),
      state_(State::greeting),
      incoming_(kIncomingBytes),
      born_(Clock::now()),
      heard_(born_),
      spoke_(born_) {}

LinkHello LinkConnection::hello(const Identity& self) const {
  LinkHello out;
  out.epoch = self.epoch;
  out.instance = self.instance;
  out.part = self.part;
  out.from = link_name(self.site);
  out.to = link_name(site_);
  out.greeting = seal::make_greeting(seal::RecordCipher::best());
  return out;
}

void LinkConnection::queue(const void* bytes, std::size_t size) {
  const auto* const from = static_cast<const unsigned char*>(bytes);
  outgoing_.insert(outgoing_.end(), from, from + size);
}

Result<> LinkConnection::connected(const Identity& self) {
  SORTIE_TRY(dialled(socket_.get()));
  state_ = State::greeting;
  heard_ = Clock::now();
  mine_ = hello(self);
  queue(&mine_, sizeof mine_);
  return write_some();
}

Result<> LinkConnection::answer(const Identity& self) {
  mine_ = hello(self);
  queue(&mine_, sizeof mine_);
  return begin_records(self);
}

/// Requires both hellos. Names, epoch and part are in the purpose of the keys: if one of them is
/// altered, the keys differ.
Result<> LinkConnection::begin_records(const Identity& self) {
  const LinkHello& of_dialler = dialled_ ? mine_ : theirs_;
  const LinkHello& of_other = dialled_ ? theirs_ : mine_;
  const std::string purpose = fmt::format(
      "sortie site link 1\n{}\n{}\n{}\n{}\n{}\n{}\n", self.epoch, self.part,
      name_in(of_dialler.from), of_dialler.instance, name_in(of_other.from), of_other.instance);
  seal::begin_records(seals_, opens_, purpose, self.key,
                      dialled_ ? seal::End::first : seal::End::second, mine_.greeting,
                      theirs_.greeting);
  state_ = State::confirming;
  return send(RecordKind::ready);
}

std::span<std::byte> LinkConnection::compose(const RecordHead& head, std::size_t size) {
  composed_ = outgoing_.size();
  outgoing_.resize(composed_ + kRecordLengthBytes + sizeof head + size +
                   seal::RecordCipher::kTagBytes);
  unsigned char* const at = outgoing_.data() + composed_;
  const auto follows =
      static_cast<std::uint32_t>(outgoing_.size() - composed_ - kRecordLengthBytes);
  std::memcpy(at, &follows, sizeof follows);
  std::memcpy(at + kRecordLengthBytes, &head, sizeof head);
  return {reinterpret_cast<std::byte*>(at + kRecordLengthBytes + sizeof head), size};
}

Result<> LinkConnection::seal_and_send() {
  unsigned char* const sealed = outgoing_.data() + composed_ + kRecordLengthBytes;
  const std::size_t size =
      outgoing_.size() - composed_ - kRecordLengthBytes - seal::RecordCipher::kTagBytes;
  if (size > sizeof(RecordHead)) {
    const std::uint64_t checksum =
        XXH3_64bits(sealed + sizeof(RecordHead), size - sizeof(RecordHead));
    std::memcpy(sealed + offsetof(RecordHead, checksum), &checksum, sizeof checksum);
  }
  seals_.seal(sealed, size);
  return write_some();
}

Result<> LinkConnection::send(RecordKind kind) {
  RecordHead head;
  head.kind = kind;
  compose(head, 0);
  if (kind == RecordKind::bye) said_last_ = true;
  return seal_and_send();
}

WireCount LinkConnection::wire_count() const {
  const WireCount counted = outer::wire_count(fd());
  if (counted.sent + counted.received > 0) return counted;
  return {written_, read_, 0};
}

Result<> LinkConnection::write_some() {
  while (sent_ < outgoing_.size()) {
    const ssize_t count = ::send(socket_.get(), outgoing_.data() + sent_, outgoing_.size() - sent_,
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == ENOBUFS)) return {};
    if (count < 0) return fail(ErrorCode::lost, std::strerror(errno));
    sent_ += static_cast<std::size_t>(count);
    written_ += static_cast<std::uint64_t>(count);
    spoke_ = Clock::now();
  }
  outgoing_.clear();
  sent_ = 0;
  return {};
}

Result<> LinkConnection::read_some(const Identity& self, const OnRecord& on_record) {
  constexpr int kCalls = 4;  // then other connections get their turn
  for (int call = 0; call < kCalls && !paused_; ++call) {
    if (begin_ > 0) {
      std::memmove(incoming_.data(), incoming_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    const std::size_t room = incoming_.size() - end_;
    const ssize_t count =
        ::recv(socket_.get(), incoming_.data() + end_, room, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return {};
    if (count < 0) return fail(ErrorCode::lost, std::strerror(errno));
    if (count == 0) return fail(ErrorCode::lost, "closed by the other side");
    heard_ = Clock::now();
    end_ += static_cast<std::size_t>(count);
    read_ += static_cast<std::uint64_t>(count);
    if (!has_hello_) {
      SORTIE_TRY(take_hello(self));
      if (!has_hello_ || !dialled_) return {};
    }
    if (state_ == State::greeting || state_ == State::parked) return {};
    SORTIE_TRY(take_records(on_record));
    if (static_cast<std::size_t>(count) < room) return {};
  }
  return {};
}

Result<> LinkConnection::take_hello(const Identity& self) {
  const std::size_t have = std::min(end_ - begin_, sizeof theirs_.magic);
  if (std::memcmp(incoming_.data() + begin_, LinkHello().magic.data(), have) != 0)
    return fail(ErrorCode::protocol, "the server there is not a leader of Sortie");
  if (end_ - begin_ < sizeof theirs_) return {};
  std::memcpy(&theirs_, incoming_.data() + begin_, sizeof theirs_);
  begin_ += sizeof theirs_;
  has_hello_ = true;
  if (theirs_.to != link_name(self.site) || theirs_.part != self.part)
    return fail(ErrorCode::protocol, "the leader there links to another site or part");
  if (!dialled_) {
    site_ = name_in(theirs_.from);
    return {};
  }
  if (theirs_.from != link_name(site_) || theirs_.epoch != mine_.epoch)
    return fail(ErrorCode::protocol, "the leader there is of another site or order");
  // The order may have changed since this end sent its hello.
  if (self.epoch != mine_.epoch) return fail(ErrorCode::lost, "the order is an old one");
  return begin_records(self);
}

Result<> LinkConnection::resume(const OnRecord& on_record) {
  paused_ = false;
  heard_ = Clock::now();
  return take_records(on_record);
}

Result<> LinkConnection::take_records(const OnRecord& on_record) {
  while (end_ - begin_ >= kRecordLengthBytes) {
    std::uint32_t follows = 0;
    std::memcpy(&follows, incoming_.data() + begin_, sizeof follows);
    if (follows < sizeof(RecordHead) + seal::RecordCipher::kTagBytes || follows > kMaxSealedBytes)
      return fail(ErrorCode::protocol, "a record of an impossible size");
    if (end_ - begin_ < kRecordLengthBytes + follows) return {};
    unsigned char* const sealed = incoming_.data() + begin_ + kRecordLengthBytes;
    const std::size_t size = follows - seal::RecordCipher::kTagBytes;
    if (!opened_ && !opens_.open(sealed, size))
      return fail(ErrorCode::protocol,
                  state_ == State::confirming
                      ? "it does not have the key of this order"
                      : "a record that was not made with the key of this link");
    opened_ = true;
    RecordHead head;
    std::memcpy(&head, sealed, sizeof head);
    const std::span<const std::byte> piece(reinterpret_cast<const std::byte*>(sealed + sizeof head),
                                           size - sizeof head);
    if (state_ == State::confirming) {
      if (head.kind != RecordKind::ready) return fail(ErrorCode::protocol, "an unexpected record");
      state_ = State::up;
    } else if (head.kind == RecordKind::bye) {
      said_bye_ = true;
    } else if (head.kind == RecordKind::piece) {
      if (!piece.empty() && XXH3_64bits(piece.data(), piece.size()) != head.checksum)
        return fail(ErrorCode::protocol, "a piece with a wrong checksum");
      if (!on_record(head, piece)) {
        paused_ = true;
        return {};
      }
    } else if (head.kind != RecordKind::alive) {
      return fail(ErrorCode::protocol, "a record of an unknown kind");
    }
    opened_ = false;
    begin_ += kRecordLengthBytes + follows;
  }
  return {};
}

}  // namespace sortie::trainer::outer
