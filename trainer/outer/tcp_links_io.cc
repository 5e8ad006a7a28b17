// The I/O thread of TcpLinks.
#include <fmt/core.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "common/base/log.h"
#include "common/training/outer.h"
#include "trainer/outer/tcp_links_engine.h"

namespace sortie::trainer::outer {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDialAgain{500};
/// Time in which only the end that dials first does so.
constexpr milliseconds kSecondDials{1000};
/// Time for a new connection to be established and to prove that it has the key.
constexpr milliseconds kGreetingLimit{10000};
/// An iteration that takes longer was suspended: what peers sent meanwhile is not read yet.
constexpr milliseconds kAsleep{2000};
/// A connection that breaks this soon after an order, before it carried anything, was broken before
/// the order: it is made again.
constexpr milliseconds kStale{2000};
constexpr std::size_t kMostUnproven = 256;
constexpr std::size_t kPiecesAtOnce = 8;

}  // namespace

TcpLinks::Engine::Engine(TcpLinksSettings settings, Listener listener, Fd wake,
                         std::uint64_t instance)
    : settings_(std::move(settings)),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      instance_(instance),
      own_address_(std::string(settings_.forward.empty() ? "" : training::kThroughLauncher) +
                   link_address(settings_.host.empty() ? outward_address() : settings_.host,
                                listener_.port)),
      identity_{settings_.site, static_cast<std::uint64_t>(settings_.part), instance, 0, {}},
      thread_([this] { run(); }) {}

TcpLinks::Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake();
  }
  thread_.join();
}

void TcpLinks::Engine::wake() {
  ::eventfd_write(wake_.get(), 1);
}

void TcpLinks::Engine::run() {
  while (maintain()) {
    const bool dials = std::ranges::any_of(connections_, [](const Connection& connection) {
      return connection->state() != LinkConnection::State::up;
    });
    poll_all(dials ? 100 : 250);
    remove_ended();
  }
  say_bye();
}

/// Handles requests of the caller's thread since the last call, and timeouts. Returns false at the
/// end.
bool TcpLinks::Engine::maintain() {
  bool has_new_order = false;
  std::set<std::string> moved;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    has_new_order = new_order_;
    moved = std::exchange(moved_, {});
    identity_.epoch = epoch_;
    identity_.key = key_;
  }
  const auto now = Clock::now();
  const bool was_asleep = now - std::exchange(turned_, now) > kAsleep;
  for (const Connection& one : connections_)
    if (moved.contains(one->site()) &&
        (one->was_dialled() || one->state() == LinkConnection::State::up))
      end(*one, {ErrorCode::lost, "it listens elsewhere now"}, true);
  remove_ended();
  for (const Connection& connection : connections_) {
    if (has_ended(*connection)) continue;
    Result<> checked = check_times(*connection, was_asleep);
    if (checked && has_new_order && connection->state() == LinkConnection::State::parked)
      checked = greet(*connection);
    if (checked && has_new_order && connection->paused()) checked = read(*connection, true);
    if (!checked) end(*connection, checked.error());
  }
  remove_ended();
  const std::lock_guard lock(mutex_);
  recount();
  for (auto& [site, peer] : peers_) {
    dial_missing(peer);
    if (peer.up > 0) peer.alone_since = now;
    if (peer.takes_part && !peer.failure && now - peer.alone_since > settings_.connect_limit)
      peer.failure = neither_reaches(peer);
  }
  if (has_new_order && identity_.epoch == epoch_) new_order_ = false;
  changed_.notify_all();
  return true;
}

void TcpLinks::Engine::poll_all(int limit_ms) {
  std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}, {listener_.socket.get(), POLLIN, 0}};
  for (const Connection& connection : connections_) {
    short events = 0;
    const bool is_dialling = connection->state() == LinkConnection::State::dialling;
    if (!connection->paused() && connection->state() != LinkConnection::State::parked)
      events |= is_dialling ? POLLOUT : POLLIN;
    if (connection->wants_output()) events |= POLLOUT;
    // Without requested events, poll() would report its end again and again.
    polled.push_back({events == 0 ? -1 : connection->fd(), events, 0});
  }
  if (::poll(polled.data(), polled.size(), std::exchange(has_more_, false) ? 0 : limit_ms) < 0)
    return;
  eventfd_t ignored = 0;
  if ((polled[0].revents & POLLIN) != 0) ::eventfd_read(wake_.get(), &ignored);
  const std::size_t count = connections_.size();
  for (std::size_t i = 0; i < count; ++i) serve(*connections_[i], polled[i + 2].revents);
  if ((polled[1].revents & POLLIN) != 0) accept_all();
}

void TcpLinks::Engine::serve(LinkConnection& connection, short events) {
  if (has_ended(connection)) return;
  if (auto served = advance(connection, events); !served) end(connection, served.error());
}

Result<> TcpLinks::Engine::advance(LinkConnection& connection, short events) {
  if (connection.state() == LinkConnection::State::dialling) {
    if (events == 0) return {};
    SORTIE_TRY(connection.connected(identity_));
    tune_link(connection.fd());
    return {};
  }
  if ((events & POLLOUT) != 0) SORTIE_TRY(connection.write_some());
  if ((events & (POLLIN | POLLHUP | POLLERR)) != 0 && !connection.paused())
    SORTIE_TRY(read(connection, false));
  return fill(connection);
}

Result<> TcpLinks::Engine::read(LinkConnection& connection, bool resumes) {
  const bool was_up = connection.state() == LinkConnection::State::up;
  const auto on_record = [&](const RecordHead& head, std::span<const std::byte> piece) {
    // Pieces may follow the first record, with which the connection comes up.
    return take_record(connection, head, piece);
  };
  Result<> done =
      resumes ? connection.resume(on_record) : connection.read_some(identity_, on_record);
  if (!was_up && connection.state() == LinkConnection::State::up) now_up(connection);
  SORTIE_TRY(std::move(done));
  const bool unanswered = !connection.was_dialled() && connection.has_hello() &&
                          connection.state() == LinkConnection::State::greeting;
  return unanswered ? greet(connection) : Result<>();
}

/// Handles the hello of an accepted connection, which names its site and order.
Result<> TcpLinks::Engine::greet(LinkConnection& connection) {
  const std::uint64_t epoch = connection.theirs().epoch;
  if (epoch > identity_.epoch) {
    connection.park();
    return {};
  }
  if (epoch < identity_.epoch) return fail(ErrorCode::lost, "it is about an earlier order");
  {
    const std::lock_guard lock(mutex_);
    const auto peer = peers_.find(connection.site());
    if (peer == peers_.end() || !peer->second.takes_part)
      return fail(ErrorCode::protocol, "its site is not a member of the order");
  }
  return connection.answer(identity_);
}

void TcpLinks::Engine::now_up(LinkConnection& connection) {
  log::debug("link to site {}: up, {}", connection.site(),
             connection.was_dialled() ? "dialled" : "accepted");
  const std::uint64_t instance = connection.theirs().instance;
  bool is_another = false;
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[connection.site()];
    is_another = peer.instance != instance;
    peer.instance = instance;
    recount();
    changed_.notify_all();
  }
  if (!is_another) return;
  for (const Connection& one : connections_)
    if (one->site() == connection.site() && one->state() == LinkConnection::State::up &&
        one->theirs().instance != instance)
      end(*one, {ErrorCode::lost, "its leader has started again"});
}

bool TcpLinks::Engine::take_record(LinkConnection& connection, const RecordHead& head,
                                   std::span<const std::byte> piece) {
  const std::lock_guard lock(mutex_);
  if (head.epoch > epoch_) return false;  // kept until that order arrives
  const auto peer = peers_.find(connection.site());
  if (head.epoch < epoch_ || peer == peers_.end() || !peer->second.takes_part) return true;
  peer->second.used = true;
  if (auto taken = peer->second.mailbox.deliver(head, piece); !taken)
    peer->second.failure = with_context(taken.error(), "link to site " + connection.site());
  changed_.notify_all();
  return true;
}

/// Sends pieces of messages to the peer as long as the socket accepts them.
Result<> TcpLinks::Engine::fill(LinkConnection& connection) {
  for (std::size_t i = 0; i < kPiecesAtOnce && connection.has_room(); ++i) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = peers_.find(connection.site());
      if (found == peers_.end() || found->second.queue.empty() || found->second.failure) return {};
      Peer& peer = found->second;
      peer.used = true;
      Outgoing& front = peer.queue.front();
      RecordHead head;
      head.kind = RecordKind::piece;
      head.tag = front.tag;
      head.epoch = epoch_;
      head.number = front.number;
      head.size = front.bytes.size();
      head.offset = front.offset;
      const std::size_t size = piece_bytes(head.size, head.offset);
      const std::span<std::byte> to = connection.compose(head, size);
      if (size > 0) std::memcpy(to.data(), front.bytes.data() + front.offset, size);
      front.offset += size;
      if (front.offset == head.size) peer.queue.pop_front();
      if (peer.queue.empty()) changed_.notify_all();
    }
    SORTIE_TRY(connection.seal_and_send());
  }
  has_more_ = has_more_ || connection.has_room();  // other connections get their turn first
  return {};
}

Result<> TcpLinks::Engine::check_times(LinkConnection& connection, bool was_asleep) {
  const auto now = Clock::now();
  if (connection.state() != LinkConnection::State::up) {
    if (now - connection.born() > kGreetingLimit) return fail(ErrorCode::lost, "no answer in time");
    return {};
  }
  if (!was_asleep && !connection.paused() && now - connection.heard() > settings_.silence)
    return fail(
        ErrorCode::lost,
        fmt::format("silent for {} s", std::chrono::duration<double>(settings_.silence).count()));
  if (connection.has_room() && now - connection.spoke() > settings_.alive)
    return connection.send(RecordKind::alive);
  return {};
}

void TcpLinks::Engine::dial_missing(Peer& peer) {
  const auto now = Clock::now();
  if (!peer.takes_part || peer.address.empty() || now < peer.dial_at) return;
  if (!peer.dials && now < opened_at_ + kSecondDials) return;
  auto missing = settings_.streams -
                 std::ranges::count_if(
                     connections_, [&](const Connection& one) { return one->site() == peer.site; });
  for (; missing > 0; --missing) {
    auto socket = settings_.forward.empty()
                      ? dial_link(peer.address)
                      : dial_through_launcher(settings_.forward, peer.address);
    if (!socket) {
      peer.last_failure = socket.error();
      peer.dial_at = now + kDialAgain;
      return;
    }
    connections_.push_back(
        std::make_unique<LinkConnection>(std::move(*socket), peer.site, peer.address));
  }
}

std::size_t TcpLinks::Engine::unproven() const {
  return static_cast<std::size_t>(std::ranges::count_if(connections_, [](const Connection& one) {
    return !one->was_dialled() && one->state() != LinkConnection::State::up;
  }));
}

void TcpLinks::Engine::accept_all() {
  for (;;) {
    Fd socket(::accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    if (unproven() >= kMostUnproven) continue;
    tune_link(socket.get());
    auto connection = std::make_unique<LinkConnection>(std::move(socket));
    const std::lock_guard lock(mutex_);
    connections_.push_back(std::move(connection));
  }
}

bool TcpLinks::Engine::has_ended(const LinkConnection& connection) const {
  return std::ranges::find(ended_, &connection) != ended_.end();
}

void TcpLinks::Engine::end(LinkConnection& connection, const Error& error, bool harmless) {
  if (has_ended(connection)) return;
  ended_.push_back(&connection);
  const bool was_up = connection.state() == LinkConnection::State::up;
  const std::string who =
      connection.site().empty()
          ? std::string("a connection from another site")
          : fmt::format("link to site {}{}", connection.site(),
                        connection.was_dialled() ? " at " + connection.address() : std::string());
  if (!was_up && !connection.was_dialled()) {
    if (const auto line =
            refusals_.pass(fmt::format("{}: refused: {}", who, error.message), turned_))
      log::warning("{}", *line);
  } else {
    log::debug("{}: {}", who, error.message);
  }
  // The other connections do not bring what one has lost: all are made anew with the next order.
  const bool takes_others = was_up && !harmless && !connection.said_bye();
  if (takes_others)
    for (const Connection& one : connections_)
      if (one->site() == connection.site() && one->state() == LinkConnection::State::up)
        end(*one, {ErrorCode::lost, "another connection to this site is lost"}, true);
  const std::lock_guard lock(mutex_);
  recount();
  const auto found = peers_.find(connection.site());
  if (found != peers_.end()) {
    Peer& peer = found->second;
    if (connection.was_dialled() && !was_up) {
      peer.last_failure = with_context(error, connection.address());
      peer.dial_at = Clock::now() + kDialAgain;
    }
    const bool left = connection.said_bye();
    const bool was_stale = !peer.used && !left && Clock::now() - opened_at_ < kStale;
    if (was_up && !harmless && !was_stale && peer.takes_part && !peer.failure &&
        (!left || peer.up == 0))
      peer.failure = {error.code == ErrorCode::protocol ? ErrorCode::protocol : ErrorCode::lost,
                      fmt::format("{}: {}", who, left ? "its leader has left" : error.message)};
  }
  changed_.notify_all();
}

/// Requires mutex_.
void TcpLinks::Engine::recount() {
  for (auto& [site, peer] : peers_)
    peer.up = static_cast<std::size_t>(
        std::ranges::count_if(connections_, [&, &site = site](const Connection& one) {
          return one->state() == LinkConnection::State::up && one->site() == site &&
                 !has_ended(*one);
        }));
}

void TcpLinks::Engine::remove_ended() {
  if (ended_.empty()) return;
  const std::lock_guard lock(mutex_);
  for (const Connection& connection : connections_) {
    if (!has_ended(*connection)) continue;
    const WireCount count = connection->wire_count();
    ended_count_.sent += count.sent;
    ended_count_.received += count.received;
    ended_count_.retransmitted += count.retransmitted;
  }
  std::erase_if(connections_, [this](const Connection& one) { return has_ended(*one); });
  ended_.clear();
}

}  // namespace sortie::trainer::outer
