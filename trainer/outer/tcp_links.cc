#include "trainer/outer/tcp_links.h"

#include <fmt/core.h>
#include <sodium.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "common/base/check.h"
#include "trainer/outer/tcp_links_engine.h"

namespace sortie::trainer::outer {
namespace {

std::string bytes_of_hexadecimal(const std::string& digits) {
  std::string bytes(digits.size() / 2, '\0');
  std::size_t size = 0;
  sodium_hex2bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), digits.data(),
                 digits.size(), nullptr, &size, nullptr);
  bytes.resize(size);
  return bytes;
}

Error interrupted_link() {
  return {ErrorCode::interrupted, "links between sites: called off"};
}

}  // namespace

Result<std::unique_ptr<TcpLinks>> TcpLinks::make(TcpLinksSettings settings) {
  SORTIE_CHECK(settings.streams > 0 && sodium_init() >= 0);
  SORTIE_ASSIGN_OR_RETURN(Listener listener,
                          listen_for_links(settings.port, !settings.forward.empty()));
  Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return std::unexpected(os_error(errno, "links between sites"));
  std::uint64_t instance = 0;
  randombytes_buf(&instance, sizeof instance);
  return std::unique_ptr<TcpLinks>(new TcpLinks(std::make_unique<Engine>(
      std::move(settings), std::move(listener), std::move(wake), instance)));
}

TcpLinks::TcpLinks(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
TcpLinks::~TcpLinks() = default;
std::string TcpLinks::address() const {
  return engine_->address();
}
Result<> TcpLinks::open(const training::OuterExchange& order, std::size_t self) {
  return engine_->open(order, self);
}
std::optional<std::size_t> TcpLinks::unreached() const {
  return engine_->unreached();
}
Result<> TcpLinks::send(std::size_t peer, std::uint32_t tag, std::span<const std::byte> bytes) {
  return engine_->send(peer, tag, bytes);
}
Result<> TcpLinks::receive(std::size_t peer, std::uint32_t tag, std::span<std::byte> bytes) {
  return engine_->receive(peer, tag, bytes);
}
Result<> TcpLinks::flush() {
  return engine_->flush();
}
void TcpLinks::cancel() {
  engine_->cancel();
}
LinkCounters TcpLinks::counters() const {
  return engine_->counters();
}

std::optional<Error> TcpLinks::Engine::obstacle(const Peer& peer) const {
  if (cancelled_) return interrupted_link();
  return peer.failure;
}

Error TcpLinks::Engine::neither_reaches(const Peer& peer) const {
  const std::string& failure = peer.last_failure.message;
  const std::string tried = peer.address.empty() ? "it listens nowhere"
                            : failure.empty()    ? peer.address + ": no answer"
                                                 : failure;
  return {ErrorCode::lost,
          fmt::format(
              "link to site {}: neither side has reached the other within {} s ({}); {}", peer.site,
              std::chrono::ceil<std::chrono::seconds>(settings_.connect_limit).count(), tried,
              settings_.forward.empty()
                  ? "open the port of outer.port at one of the two sites, or set outer.route "
                    "= \"launcher\""
                  : "the launcher connects them (outer.route), see its messages about hosts")};
}

Result<> TcpLinks::Engine::open(const training::OuterExchange& order, std::size_t self) {
  SORTIE_CHECK(self < order.members.size());
  std::string key = bytes_of_hexadecimal(order.key);
  if (key.size() != seal::kSharedKeyBytes)
    return fail(ErrorCode::protocol, "links between sites: the order's key is not of 32 bytes");
  std::unique_lock lock(mutex_);
  if (order.epoch <= epoch_)
    return fail(ErrorCode::protocol,
                fmt::format("links between sites: epoch {} comes after {}", order.epoch, epoch_));
  unreached_.reset();
  epoch_ = order.epoch;
  key_ = std::move(key);
  cancelled_ = false;
  new_order_ = true;
  opened_at_ = Clock::now();
  for (auto& [site, peer] : peers_) {
    peer.takes_part = peer.used = false;
    peer.failure.reset();
    peer.queue.clear();
    peer.sent.clear();
    peer.mailbox.clear();
  }
  members_.assign(order.members.size(), nullptr);
  for (std::size_t i = 0; i < order.members.size(); ++i) {
    if (i == self) continue;
    Peer& peer = peers_[order.members[i].site];
    // A new address means a new process: connections to the previous one are useless.
    if (!peer.site.empty() && peer.address != order.members[i].address) moved_.insert(peer.site);
    peer.site = order.members[i].site;
    peer.address = order.members[i].address;
    peer.takes_part = true;
    // One of the two ends dials first, the other one later if that fails.
    peer.dials = i > self || order.members[self].address.empty();
    peer.dial_at = peer.alone_since = opened_at_;
    peer.last_failure.message.clear();
    members_[i] = &peer;
  }
  wake();
  changed_.wait_until(lock, opened_at_ + settings_.connect_limit, [&] {
    return cancelled_ || (!new_order_ && std::ranges::all_of(members_, [](const Peer* peer) {
             return peer == nullptr || peer->up > 0;
           }));
  });
  if (cancelled_) return std::unexpected(interrupted_link());
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (members_[i] != nullptr && members_[i]->up == 0) missing.push_back(i);
  if (missing.empty()) return {};
  unreached_ = missing.size() > 1 && missing.size() == members_.size() - 1 ? self : missing.front();
  const Peer& peer = *members_[missing.front()];
  return std::unexpected(peer.failure ? *peer.failure : neither_reaches(peer));
}

Result<> TcpLinks::Engine::send(std::size_t peer_number, std::uint32_t tag,
                                std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  SORTIE_CHECK(peer_number < members_.size() && members_[peer_number] != nullptr);
  Peer& peer = *members_[peer_number];
  if (auto error = obstacle(peer)) return std::unexpected(std::move(*error));
  peer.queue.push_back({tag, peer.sent[tag]++, 0, bytes});
  payload_sent_ += bytes.size();
  wake();
  return {};
}

Result<> TcpLinks::Engine::receive(std::size_t peer_number, std::uint32_t tag,
                                   std::span<std::byte> bytes) {
  std::unique_lock lock(mutex_);
  SORTIE_CHECK(peer_number < members_.size() && members_[peer_number] != nullptr);
  Peer& peer = *members_[peer_number];
  const std::uint64_t number = peer.mailbox.ask(tag, bytes);
  std::optional<Result<>> outcome;
  std::optional<Error> error;
  changed_.wait(lock, [&] {
    outcome = peer.mailbox.outcome(tag, number);
    error = obstacle(peer);
    return outcome || error;
  });
  if (!outcome || !*outcome) {
    peer.mailbox.forget(tag, number);
    return outcome ? std::unexpected(with_context(outcome->error(), "link to site " + peer.site))
                   : std::unexpected(*error);
  }
  const auto kept = peer.mailbox.take(tag, number);
  payload_received_ += bytes.size();
  lock.unlock();
  if (kept) std::copy_n(kept.get(), bytes.size(), bytes.data());
  return {};
}

Result<> TcpLinks::Engine::flush() {
  std::unique_lock lock(mutex_);
  std::optional<Error> error;
  changed_.wait(lock, [&] {
    bool all_out = true;
    for (const Peer* peer : members_) {
      if (peer == nullptr) continue;
      if (!peer->queue.empty() && (error = obstacle(*peer))) return true;
      all_out = all_out && peer->queue.empty();
    }
    return all_out;
  });
  if (cancelled_) error = interrupted_link();
  if (!error) return {};
  for (auto& [site, peer] : peers_) peer.queue.clear();  // callers may free what they have sent
  return std::unexpected(std::move(*error));
}

void TcpLinks::Engine::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  for (auto& [site, peer] : peers_) peer.queue.clear();  // callers may free what they have sent
  changed_.notify_all();
}

LinkCounters TcpLinks::Engine::counters() {
  const std::lock_guard lock(mutex_);
  LinkCounters out;
  out.payload_sent = payload_sent_;
  out.payload_received = payload_received_;
  WireCount sum = ended_count_;
  for (const Connection& connection : connections_) {
    const WireCount count = connection->wire_count();
    sum.sent += count.sent;
    sum.received += count.received;
    sum.retransmitted += count.retransmitted;
  }
  out.wire_sent = sum.sent;
  out.wire_received = sum.received;
  out.retransmitted = sum.retransmitted;
  return out;
}

}  // namespace sortie::trainer::outer
