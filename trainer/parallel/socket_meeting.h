// How the ranks of the sockets backend find each other.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "trainer/parallel/sockets.h"

namespace sortie::trainer {

/// The first bytes that a rank sends on a connection.
struct RankGreeting {
  std::array<char, 8> magic{};
  std::array<char, 32> secret{};
  std::int32_t rank = 0, size = 0;
  std::uint16_t port = 0;  // on which the rank listens
  std::array<char, 6> unused{};

  static RankGreeting of(int rank, int size, const std::string& secret, std::uint16_t port);
  /// Whether it is from a rank of this run.
  bool is_one_of(int size, const std::string& secret) const;
};

/// Address at which a rank listens.
struct RankAddress {
  std::array<char, 64> host{};  // numeric or a host name; NUL-terminated
  std::uint16_t port = 0;
};

/// Result of the meeting for one rank.
struct MetRanks {
  std::vector<RankAddress> addresses;  // by rank
  Fd listener;                         // of this rank
  std::vector<Fd> sockets;             // by rank; open if connected already
};

/// Rank 0 accepts a connection from every other rank at `listener` and sends the addresses of all
/// ranks. Each other rank connects to rank 0 and receives them. Blocks for at most `limit`.
Result<MetRanks> meet_ranks(int rank, int size, const MeetingPlace& place, Fd listener,
                            std::chrono::milliseconds limit);

/// Connects to a listening rank and sends `greeting`; retries until `deadline`. The socket is
/// non-blocking.
Result<Fd> dial_rank(const std::string& host, std::uint16_t port, const RankGreeting& greeting,
                     std::chrono::steady_clock::time_point deadline);
/// Sets options for small messages, and keepalive so that a host that is gone is noticed.
void tune_rank_socket(int socket);

}  // namespace sortie::trainer
