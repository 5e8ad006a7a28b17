// SiteLinks between threads of one process: several sites in a test, without sockets, with faults.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trainer/outer/site_links.h"

namespace sortie::testing {

struct MemoryNetworkOptions {
  /// A message arrives after a random time up to this, so messages of different tags and peers
  /// overtake each other; those of one (peer, tag) do not.
  std::chrono::microseconds max_delay{0};
  std::uint64_t seed = 0;  // of the delays, and of which messages are buffered
  /// A receive() or flush() that waits longer for a peer fails with ErrorCode::lost.
  std::chrono::milliseconds silence{20000};
  /// Sees every message that is sent, one at a time.
  std::function<void(const std::string& from, const std::string& to, std::size_t bytes)> on_send{};
};

/// Thread-safe; lives longer than the links that it gives out. Half of the messages, at random, are
/// copied when they are sent; the others stay in the sender's memory until the receiver takes them,
/// and a sender that changed them before flush() makes receive() fail with ErrorCode::protocol.
class MemoryNetwork {
 public:
  explicit MemoryNetwork(MemoryNetworkOptions options = {});

  /// The leader of this part on this site. Its address is one of the form "127.0.0.1:N" that only
  /// this network knows. Asked again, the site is alive again, with a new address.
  std::unique_ptr<trainer::outer::SiteLinks> links(const std::string& site, std::int64_t part = 0);

  /// The site is gone as a killed process is: what it has sent still arrives, what waits for it
  /// fails with ErrorCode::lost, its own calls with ErrorCode::interrupted.
  void kill(const std::string& site);
  /// As kill(), when its leaders are about to send message number `message` from now on, which is
  /// not sent; 0 = the next one.
  void kill_at(const std::string& site, std::uint64_t message);
  /// Message number `message` from now on of this site arrives with a bit flipped.
  void corrupt_at(const std::string& site, std::uint64_t message);
  /// No message passes between the two any more; both see the link as lost.
  void cut(const std::string& one, const std::string& other);
  void mend(const std::string& one, const std::string& other);
  /// Messages to and from this site stay under way until resume().
  void stall(const std::string& site);
  void resume(const std::string& site);

 private:
  class Links;
  using Time = std::chrono::steady_clock::time_point;
  struct Leader {
    std::string site, address;
    std::int64_t part = 0;
    bool dead = false;
    std::uint64_t epoch = 0;  // open; 0 = none yet
    trainer::outer::LinkCounters counters;
  };
  struct Message {
    std::span<const std::byte> bytes;
    std::vector<std::byte> copy;  // of a buffered one
    std::uint64_t hash = 0;       // of what was sent
    bool buffered = false, corrupt = false;
    Time due;
  };
  struct Key {
    std::size_t to = 0, from = 0;  // leaders
    std::uint64_t epoch = 0;
    std::uint32_t tag = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Plan {
    std::uint64_t sent = 0;
    std::optional<std::uint64_t> kill_at, corrupt_at;
  };

  void bury(const std::string& site);
  void drop_before(std::size_t leader, std::uint64_t epoch);
  bool cut_off(const std::string& one, const std::string& other) const;
  bool stalled(const Key& key) const;

  const MemoryNetworkOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Leader> leaders_;
  std::map<Key, std::deque<Message>> boxes_;
  std::map<std::string, Plan> plans_;
  std::set<std::pair<std::string, std::string>> cuts_;
  std::set<std::string> stalled_;
  std::uint64_t messages_ = 0;
};

}  // namespace sortie::testing
