// A rank's connection to the hub, shared by all its communicators.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/cuda/nccl_hub.h"

namespace emulated_cuda {

using Bytes = std::vector<std::byte>;

/// The fault that SORTIE_EMULATED_NCCL_FAULT requests (nccl.h).
struct Fault {
  std::string kind;
  int rank = -1;
  std::uint64_t number = 0;
  static Fault from_environment();
};

class World {
 public:
  World(int rank, int size, const std::string& host, const std::string& port);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Closes the connection: the rank is gone for the others, and read() returns.
  void close();
  void ask(const Asked& head, const void* bytes);
  /// Takes a received message of the hub. Returns false if it has not arrived.
  bool take(Ask what, std::uint32_t group, std::uint64_t which, Bytes& bytes, Asked& head);
  /// Key for take() of one end of a connection.
  static std::uint64_t which(int peer, Role role) {
    return static_cast<std::uint64_t>(peer) * 4 + static_cast<std::uint64_t>(role);
  }
  void fail(const std::string& words);
  bool failed() const { return failed_; }
  /// Changes with every received message.
  std::uint64_t news() const { return news_; }
  const char* problem();
  /// Receives messages until the connection is closed. Runs on a separate thread.
  void read();

  /// The fault of the next operation, "" if it has none. Splits are counted separately.
  std::string next_fault();
  bool next_split_hangs();
  /// Duration of each NCCL call: SORTIE_EMULATED_NCCL_CALL_MS.
  std::chrono::milliseconds call_time() const { return call_time_; }

 private:
  const int rank_;
  int socket_ = -1;
  const Fault fault_ = Fault::from_environment();
  const std::chrono::milliseconds call_time_;
  std::atomic<std::uint64_t> number_{0}, splits_{0}, news_{1};
  std::mutex writing_, mutex_;
  std::map<std::tuple<Ask, std::uint32_t, std::uint64_t>, std::deque<std::pair<Asked, Bytes>>>
      come_;
  std::string problem_;
  std::atomic<bool> failed_{false};
};

}  // namespace emulated_cuda
