// How the ranks of the sockets backend find each other.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "trainer/parallel/sockets.h"

namespace sortie::trainer {

/// What a rank says first on a connection, as it is.
struct RankGreeting {
  std::array<char, 8> magic{};
  std::array<char, 32> secret{};
  std::int32_t rank = 0, size = 0;
  std::uint16_t port = 0;  // where it listens itself
  std::array<char, 6> unused{};

  static RankGreeting of(int rank, int size, const std::string& secret, std::uint16_t port);
  /// Of a rank of this run.
  bool is_one_of(int size, const std::string& secret) const;
};

/// Where a rank listens.
struct RankAddress {
  std::array<char, 64> host{};  // numeric, or a name; ends with 0
  std::uint16_t port = 0;
};

/// The outcome for one rank.
struct MetRanks {
  std::vector<RankAddress> addresses;  // by rank
  Fd listener;                         // of this rank
  std::vector<Fd> sockets;             // to each rank; open where there is a connection already
};

Result<MetRanks> meet_ranks(int rank, int size, const MeetingPlace& place, Fd listener,
                            std::chrono::milliseconds limit);

/// A connection to where a rank listens, which has been greeted; not blocking.
Result<Fd> dial_rank(const std::string& host, std::uint16_t port, const RankGreeting& greeting,
                     std::chrono::steady_clock::time_point deadline);
/// For connections with small messages, and so that a host that is gone is noticed.
void tune_rank_socket(int socket);

}  // namespace sortie::trainer
