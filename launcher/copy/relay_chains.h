// RelayChains: decides which host fetches pieces from which. Hosts are appended to chains as they
// become ready: the launcher feeds the first, each later host fetches from the one before it, which
// forwards pieces while it still receives. A chain has at most `max_length` hosts. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace sortie::launcher {

class RelayChains {
 public:
  explicit RelayChains(std::size_t max_length = 200) : max_length_(max_length) {}

  /// Adds `host`, which is ready. Returns the host to fetch pieces from; nullopt if it is fed from
  /// the launcher or lacks none. `lacks`: it lacks pieces. `serves`: others can connect to it. A
  /// host that serves and fetches from no other begins a new chain.
  std::optional<std::size_t> attach(std::size_t host, bool lacks, bool serves);
  /// No further host will fetch from `host`.
  void remove(std::size_t host);

 private:
  struct Tail {
    std::size_t host;
    std::size_t length;
  };
  std::size_t max_length_;
  std::vector<Tail> tails_;
};

}  // namespace sortie::launcher
