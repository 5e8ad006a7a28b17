// The inside of TcpLinks: what the caller's thread and the I/O thread share, under one lock, and
// the connections, which the I/O thread alone uses.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

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

  // Of the caller's thread.
  std::string address() const { return own_address_; }
  Result<> open(const training::OuterExchange& order, std::size_t self);
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
  /// Another site; kept from order to order, its messages are not.
  struct Peer {
    std::string site, address;
    std::uint64_t instance = 0;  // of the process that its connections lead to
    std::size_t up = 0;          // connections
    bool dials = false;          // this end
    Clock::time_point dial_at{};
    Error last_failure;               // of dialling; no message = none
    Clock::time_point alone_since{};  // no connection is up since then
    // Of this order:
    bool takes_part = false;
    bool used = false;  // a piece was sent or received
    std::optional<Error> failure;
    std::deque<Outgoing> queue;
    std::map<std::uint32_t, std::uint64_t> sent;  // messages, by tag
    LinkMailbox mailbox;
  };
  using Connection = std::unique_ptr<LinkConnection>;

  /// Why a call that waits for this peer can not go on; nothing else.
  std::optional<Error> obstacle(const Peer& peer) const;
  Error neither_reaches(const Peer& peer) const;
  void wake();

  // Of the I/O thread.
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
  /// `harmless`: nothing that the peer has sent in this order is lost with it.
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

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Peer> peers_;  // by site
  std::vector<Peer*> members_;         // of the order, by their number there; null = this site
  std::uint64_t epoch_ = 0;
  std::string key_;
  Clock::time_point opened_at_{};
  bool cancelled_ = false, stopping_ = false;
  std::uint64_t payload_sent_ = 0, payload_received_ = 0;
  WireCount ended_count_;                // of connections that are no more
  std::vector<Connection> connections_;  // the list and its sockets; changed by the I/O thread
  std::set<std::string> moved_;          // sites that listen elsewhere since this order
  bool new_order_ = false;

  // Of the I/O thread alone:
  LinkConnection::Identity identity_;  // as of the order that it has seen
  std::vector<const LinkConnection*> ended_;
  bool has_more_ = false;                    // to send, and room for it
  Clock::time_point turned_ = Clock::now();  // of the loop, the last time
  std::thread thread_;
};

}  // namespace sortie::trainer::outer
