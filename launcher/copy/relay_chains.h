// RelayChains: who gets pieces from whom. Hosts are lined up in chains as they become ready: the
// first is fed from here, each later one fetches from the one before it, which passes on what it
// has while it still receives. A host is at most `max_length` links away from here. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace sortie::launcher {

class RelayChains {
 public:
  explicit RelayChains(std::size_t max_length = 200) : max_length_(max_length) {}

  /// `host` is ready. Where it lacks pieces: the host to fetch them from, or nothing: from here.
  /// `serves`: others can reach it. One that lacks nothing and serves begins a chain of its own.
  std::optional<std::size_t> attach(std::size_t host, bool lacks, bool serves);
  /// Nobody is to be sent to that host any more.
  void remove(std::size_t host);
  std::size_t chains() const { return tails_.size(); }

 private:
  struct Tail {
    std::size_t host;
    std::size_t length;
  };
  std::size_t max_length_;
  std::vector<Tail> tails_;
};

}  // namespace sortie::launcher
