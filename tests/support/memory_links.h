// SiteLinks between threads of one process: several sites in one test, without sockets, with
// injected faults.
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
  /// Maximum random delay of a message. So messages of different tags and peers overtake each
  /// other; those of one (peer, tag) do not.
  std::chrono::microseconds max_delay{0};
  std::uint64_t seed = 0;  // of the delays and of the choice of buffered messages
  /// A receive() or flush() that waits longer than this for a peer fails with ErrorCode::lost.
  std::chrono::milliseconds silence{20000};
  /// Called for every message that is sent, one at a time, with the network locked.
  std::function<void(const std::string& from, const std::string& to, std::size_t bytes)> on_send{};
};

/// Thread-safe; must outlive the links that it creates. Half of the messages, chosen at random, are
/// copied when they are sent. The others stay in the sender's memory until the receiver takes them;
/// if the sender changes them before flush(), receive() fails with ErrorCode::protocol.
class MemoryNetwork {
 public:
  explicit MemoryNetwork(MemoryNetworkOptions options = {});

  /// Creates the links of the leader of this part on this site. Its address has the form
  /// "127.0.0.1:N" and is known only to this network. Another call for the same site revives it
  /// with a new address.
  std::unique_ptr<trainer::outer::SiteLinks> links(const std::string& site, std::int64_t part = 0);

  /// Makes the site behave like a killed process: what it has sent still arrives, calls of others
  /// that wait for it fail with ErrorCode::lost, and its own calls with ErrorCode::interrupted.
  void kill(const std::string& site);
  /// Like kill(), at the moment when the site's leaders are about to send message number `message`
  /// from now on. That message is not sent; 0 = the next one.
  void kill_at(const std::string& site, std::uint64_t message);
  /// Makes message number `message` of this site, from now on, fail its checksum.
  void corrupt_at(const std::string& site, std::uint64_t message);
  /// Cuts the link between two sites: sends fail with ErrorCode::lost, and receives do once the
  /// messages that were sent before are taken.
  void cut(const std::string& one, const std::string& other);
  void mend(const std::string& one, const std::string& other);
  /// Delays messages to and from this site until resume().
  void stall(const std::string& site);
  void resume(const std::string& site);

 private:
  class Links;
  using Time = std::chrono::steady_clock::time_point;
  struct Leader {
    std::string site, address;
    std::int64_t part = 0;
    bool dead = false;
    std::uint64_t epoch = 0;  // of the last open(); 0 = none yet
    trainer::outer::LinkCounters counters;
  };
  struct Message {
    std::span<const std::byte> bytes;
    std::vector<std::byte> copy;  // of a buffered message
    std::uint64_t hash = 0;       // hash at the time of send()
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
