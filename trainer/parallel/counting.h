// A group of a rank that is only planned: its collectives carry nothing and count what they would
// send.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Whom bytes go to.
struct SentTo {
  std::string group;  // its name
  int peer = -1;      // one rank of it; -1: all others, each the same part
  auto operator<=>(const SentTo&) const = default;
};
/// Payload bytes that this rank would send.
using SentBytes = std::map<SentTo, double>;
/// To all ranks of a group together.
double bytes_to(const SentBytes& sent, std::string_view group);

/// Rank `rank` of a group of `size`. Tensors are left as they are, gathered texts are this rank's.
/// `sent` outlives it. It can not be split.
std::unique_ptr<Communicator> make_counting_communicator(int rank, int size, std::string name,
                                                         SentBytes& sent);

}  // namespace sortie::trainer
