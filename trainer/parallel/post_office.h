// PostOffice: the messages between the thread ranks of one process.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <queue>
#include <string>
#include <thread>
#include <vector>

#include "trainer/parallel/thread_ranks.h"
#include "trainer/parallel/transport.h"

namespace sortie::trainer {

/// Thread-safe. A message waits in the receiver's box for (sender, tag) until the receiver has
/// posted a receive and the message's delay is over. It is then copied, by the thread that finds
/// both or by the courier thread.
class PostOffice {
 public:
  PostOffice(int size, const ThreadRankOptions& options);
  ~PostOffice();

  void send(int from, int to, int tag, std::span<const std::byte> bytes, Message& message);
  void receive(int from, int to, int tag, std::span<std::byte> bytes, Message& message);
  void withdraw(Message& message);
  /// Marks a rank as ended: what waits for it is lost. `why` is for error messages.
  void leave(int rank, const std::string& why);
  std::string fate_of(int rank);
  std::uint64_t completed(int rank) const {
    return ranks_[static_cast<std::size_t>(rank)].completed;
  }
  /// Throws CommunicatorError if a message had another size than its receiver expected.
  void check();
  /// Blocks until completed(rank) differs from `seen`, but only for a short time.
  void wait_for_change(int rank, std::uint64_t seen);
  int size() const { return static_cast<int>(ranks_.size()); }

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Sent {
    std::span<const std::byte> bytes;
    std::vector<std::byte> copy;  // of a buffered send, whose message is done at once
    Message* message = nullptr;   // of the sender; nullptr if done
    Time due;
  };
  struct Wanted {
    std::span<std::byte> bytes;
    Message* message;
  };
  struct Key {
    int to, from, tag;
    auto operator<=>(const Key&) const = default;
  };
  struct Box {
    std::deque<Sent> sent;
    std::deque<Wanted> wanted;
  };
  struct Rank {
    std::optional<std::string> fate;  // why it has left
    std::atomic<std::uint64_t> completed{0};
    std::condition_variable changed;
    std::uint64_t sends = 0;
  };
  struct Due {
    Time at;
    Key key;
    bool operator>(const Due& other) const { return at > other.at; }
  };

  void deliver(const Key& key);
  void settle(Message* message, int owner, Message::State state);
  void carry(const std::stop_token& stop);

  const ThreadRankOptions options_;
  std::mutex mutex_;
  std::deque<Rank> ranks_;
  std::map<Key, Box> boxes_;
  std::string mismatch_;
  std::atomic<bool> broken_{false};
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::condition_variable_any posted_;  // for the courier
  std::jthread courier_;                // runs only if messages are delayed
};

}  // namespace sortie::trainer
