// A rank's connection to the hub, as all its communicators share it.
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

/// What SORTIE_EMULATED_NCCL_FAULT asks for (nccl.h).
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

  /// This rank is gone for the others; its reader ends.
  void close();
  void ask(const Asked& head, const void* bytes);
  /// A message of the hub's, once it has come.
  bool take(Ask what, std::uint32_t group, std::uint64_t which, Bytes& bytes, Asked& head);
  /// The number of `take` for an end of a connection.
  static std::uint64_t which(int peer, Role role) {
    return static_cast<std::uint64_t>(peer) * 4 + static_cast<std::uint64_t>(role);
  }
  void fail(const std::string& words);
  bool failed() const { return failed_; }
  /// Changes with all that comes.
  std::uint64_t news() const { return news_; }
  const char* problem();
  /// Takes what comes until the connection is closed.
  void read();

  /// The fault of the next operation, if it is its turn; splits have numbers of their own.
  std::string next_fault();
  bool next_split_hangs();
  /// How long each call of NCCL takes: SORTIE_EMULATED_NCCL_CALL_MS.
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
