// The implementation of TcpLinks: the state that the caller's thread and the I/O thread share,
// under one lock, and the connections, which belong to the I/O thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "common/base/repeats.h"
#include "trainer/outer/link_connection.h"
#include "trainer/outer/link_mailbox.h"
#include "trainer/outer/link_sockets.h"
#include "trainer/outer/tcp_links.h"

namespace sortie::trainer::outer {

class TcpLinks::Engine {
 public:
  using Clock = LinkConnection::Clock;

  Engine(TcpLinksSettings settings, Listener listener, Fd wake, std::uint64_t instance);
  ~Engine();

  // For the caller's thread.
  std::string address() const { return own_address_; }
  Result<> open(const training::OuterExchange& order, std::size_t self);
  std::optional<std::size_t> unreached() const { return unreached_; }
  Result<> send(std::size_t peer, std::uint32_t tag, std::span<const std::byte> bytes);
  Result<> receive(std::size_t peer, std::uint32_t tag, std::span<std::byte> bytes);
  Result<> flush();
  void cancel();
  LinkCounters counters();

 private:
  struct Outgoing {
    std::uint32_t tag = 0;
    std::uint64_t number = 0, offset = 0;
    std::span<const std::byte> bytes;
  };
  /// Another site. It is kept from order to order; its messages are not.
  struct Peer {
    std::string site, address;
    std::uint64_t instance = 0;  // of the process at the other end
    std::size_t up = 0;          // connections that are up
    bool dials = false;          // this end dials first
    Clock::time_point dial_at{};
    Error last_failure;               // of dialling, with the address; no message = none
    Clock::time_point alone_since{};  // no connection is up since then
    // Of the current order:
    bool takes_part = false;
    bool used = false;  // a piece was sent or received
    std::optional<Error> failure;
    std::deque<Outgoing> queue;
    std::map<std::uint32_t, std::uint64_t> sent;  // messages, by tag
    LinkMailbox mailbox;
  };
  using Connection = std::unique_ptr<LinkConnection>;

  /// Returns why a call that waits for this peer can not continue; nullopt if it can.
  std::optional<Error> obstacle(const Peer& peer) const;
  Error neither_reaches(const Peer& peer) const;
  void wake();

  // For the I/O thread.
  void run();
  bool maintain();
  void poll_all(int limit_ms);
  void dial_missing(Peer& peer);
  void accept_all();
  void serve(LinkConnection& connection, short events);
  Result<> advance(LinkConnection& connection, short events);
  Result<> read(LinkConnection& connection, bool resumes);
  Result<> greet(LinkConnection& connection);
  Result<> check_times(LinkConnection& connection, bool was_asleep);
  void now_up(LinkConnection& connection);
  Result<> fill(LinkConnection& connection);
  bool take_record(LinkConnection& connection, const RecordHead& head,
                   std::span<const std::byte> piece);
  /// Ends a connection. `harmless`: no message of this order is lost with it.
  void end(LinkConnection& connection, const Error& error, bool harmless = false);
  bool has_ended(const LinkConnection& connection) const;
  void remove_ended();
  void say_bye();
  void recount();
  std::size_t unproven() const;

  const TcpLinksSettings settings_;
  const Listener listener_;
  const Fd wake_;
  const std::uint64_t instance_;
  std::string own_address_;
  std::optional<std::size_t> unreached_;  // used by the caller's thread only

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Peer> peers_;  // by site
  std::vector<Peer*> members_;         // of the order, by index; nullptr = this site
  std::uint64_t epoch_ = 0;
  std::string key_;
  Clock::time_point opened_at_{};
  bool cancelled_ = false, stopping_ = false;
  std::uint64_t payload_sent_ = 0, payload_received_ = 0;
  WireCount ended_count_;                // of connections that have ended
  std::vector<Connection> connections_;  // changed only by the I/O thread, with the lock
  std::set<std::string> moved_;          // sites whose address this order has changed
  bool new_order_ = false;

  // Used by the I/O thread only:
  LinkConnection::Identity identity_;  // as of the last order seen
  std::vector<const LinkConnection*> ended_;
  bool has_more_ = false;                           // to send, and room for it
  Clock::time_point turned_ = Clock::now();         // start of the last iteration of the loop
  RepeatFilter refusals_{std::chrono::minutes(1)};  // who is refused dials again at once
  std::thread thread_;
};

}  // namespace sortie::trainer::outer
