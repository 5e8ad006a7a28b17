// The sockets backend's transport.
#include "trainer/parallel/sockets.h"

#include <fmt/core.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <thread>

#include "trainer/parallel/group_communicator.h"
#include "trainer/parallel/socket_link.h"
#include "trainer/parallel/socket_meeting.h"

namespace sortie::trainer {
namespace {

/// Two ranks connect when they first exchange a message; the higher one dials.
class SocketTransport final : public Transport {
 public:
  SocketTransport(int rank, std::string secret, MetRanks met)
      : rank_(rank),
        secret_(std::move(secret)),
        addresses_(std::move(met.addresses)),
        listener_(std::move(met.listener)),
        events_(::epoll_create1(EPOLL_CLOEXEC)),
        links_(addresses_.size()) {
    if (!events_) throw CommunicatorError("no descriptor is left for epoll");
    watch(listener_.get(), EPOLL_CTL_ADD, EPOLLIN, kListener);
    for (std::size_t peer = 0; peer < met.sockets.size(); ++peer)
      if (met.sockets[peer]) connect(static_cast<int>(peer), std::move(met.sockets[peer]));
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(links_.size()); }
  std::string library() const override { return "sockets"; }

  void send(int to, int tag, std::span<const std::byte> bytes, Message& message) override {
    link(to).send(tag, bytes, message);
    settle(to);
  }
  void receive(int from, int tag, std::span<std::byte> bytes, Message& message) override {
    link(from).receive(tag, bytes, message);
    settle(from);
  }

  void progress() override { look(0); }
  std::uint64_t completed() const override { return completed_; }
  void pause(std::chrono::nanoseconds idle) override {
    constexpr std::chrono::microseconds kSpin{50};
    if (idle < kSpin) return std::this_thread::yield();
    look(idle < std::chrono::milliseconds(20) ? 1 : 10);
  }
  void withdraw(Message& message) override {
    for (SocketLink& one : links_) one.withdraw(message);
  }
  std::string fate_of(int rank) const override {
    return links_[static_cast<std::size_t>(rank)].fate();
  }
  /// The other ranks notice that this one is gone and fail at their next wait.
  void abort(int exit_code) override { std::_Exit(exit_code); }

 private:
  static constexpr std::uint32_t kListener = ~std::uint32_t{0};
  static constexpr std::chrono::seconds kDialling{60};

  SocketLink& link(int peer) {
    SocketLink& one = links_[static_cast<std::size_t>(peer)];
    if (one.open() || !one.fate().empty() || peer > rank_) return one;
    const RankAddress& address = addresses_[static_cast<std::size_t>(peer)];
    auto socket =
        dial_rank(address.host.data(), address.port, RankGreeting::of(rank_, size(), secret_, 0),
                  std::chrono::steady_clock::now() + kDialling);
    if (socket)
      connect(peer, std::move(*socket));
    else
      one.lose(socket.error().message);
    return one;
  }

  void connect(int peer, Fd socket) {
    SocketLink& one = links_[static_cast<std::size_t>(peer)];
    watch(socket.get(), EPOLL_CTL_ADD, EPOLLIN, static_cast<std::uint32_t>(peer));
    one.connect(std::move(socket));
    settle(peer);
  }

  void watch(int socket, int change, std::uint32_t events, std::uint32_t who) {
    epoll_event event{};
    event.events = events;
    event.data.u32 = who;
    if (::epoll_ctl(events_.get(), change, socket, &event) != 0)
      throw CommunicatorError(fmt::format("epoll: errno {}", errno));
  }

  /// Makes progress on a link, and has epoll report when more can be written.
  void settle(int peer) {
    SocketLink& one = links_[static_cast<std::size_t>(peer)];
    completed_ += one.move();
    if (!one.open()) return;
    const auto found = std::ranges::find(writing_, peer);
    if (one.has_to_write() == (found != writing_.end())) return;
    watch(one.descriptor(), EPOLL_CTL_MOD,
          one.has_to_write() ? EPOLLIN | EPOLLOUT : std::uint32_t{EPOLLIN},
          static_cast<std::uint32_t>(peer));
    if (one.has_to_write())
      writing_.push_back(peer);
    else
      writing_.erase(found);
  }

  void look(int milliseconds) {
    std::array<epoll_event, 64> events;
    const int count =
        ::epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()), milliseconds);
    for (int i = 0; i < count; ++i) {
      const std::uint32_t who = events[static_cast<std::size_t>(i)].data.u32;
      if (who == kListener)
        accept_ranks();
      else if (who >= links_.size())
        greet(who);
      else
        settle(static_cast<int>(who));
    }
  }

  void accept_ranks() {
    for (;;) {
      Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) return;
      // The oldest connection without a greeting gives way.
      constexpr std::size_t kMostStrangers = 4096;
      if (strangers_.size() == kMostStrangers) strangers_.erase(strangers_.begin());
      const std::uint32_t name = next_stranger_++;
      watch(socket.get(), EPOLL_CTL_ADD, EPOLLIN, name);
      strangers_[name].socket = std::move(socket);
    }
  }

  /// Reads the greeting on a new connection.
  void greet(std::uint32_t name) {
    const auto found = strangers_.find(name);
    if (found == strangers_.end()) return;
    Stranger& one = found->second;
    const ssize_t count = ::recv(one.socket.get(), reinterpret_cast<char*>(&one.said) + one.bytes,
                                 sizeof one.said - one.bytes, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count > 0) one.bytes += static_cast<std::size_t>(count);
    if (count > 0 && one.bytes < sizeof one.said) return;
    Stranger met = std::move(one);
    strangers_.erase(found);
    const bool welcome = count > 0 && met.said.is_one_of(size(), secret_) &&
                         met.said.rank > rank_ &&
                         !links_[static_cast<std::size_t>(met.said.rank)].open();
    if (!welcome) return;
    ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, met.socket.get(), nullptr);
    tune_rank_socket(met.socket.get());
    connect(met.said.rank, std::move(met.socket));
  }

  struct Stranger {
    Fd socket;
    RankGreeting said;
    std::size_t bytes = 0;
  };

  const int rank_;
  const std::string secret_;
  const std::vector<RankAddress> addresses_;
  Fd listener_, events_;
  std::vector<SocketLink> links_;
  std::vector<int> writing_;
  std::map<std::uint32_t, Stranger> strangers_;  // no complete greeting yet
  std::uint32_t next_stranger_ = std::uint32_t{1} << 30;
  std::uint64_t completed_ = 0;
};

}  // namespace

Result<std::unique_ptr<Communicator>> make_socket_communicator(int rank, int size,
                                                               const MeetingPlace& place,
                                                               Fd listener,
                                                               std::chrono::milliseconds limit) {
  SORTIE_ASSIGN_OR_RETURN(MetRanks met, meet_ranks(rank, size, place, std::move(listener), limit));
  try {
    return std::make_unique<GroupCommunicator>(
        std::make_unique<SocketTransport>(rank, place.secret, std::move(met)));
  } catch (const CommunicatorError& error) {
    return fail(ErrorCode::unsupported, fmt::format("sockets: {}", error.what()));
  }
}

}  // namespace sortie::trainer
