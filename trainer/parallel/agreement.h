// The debug mode: before each collective its ranks compare what they are about to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/tensor/dtype.h"

namespace sortie::trainer {

enum class Collective : std::int32_t {
  all_reduce_sum,
  all_reduce_max,
  reduce_scatter_sum,
  reduce_scatter_max,
  all_gather,
  broadcast,
  all_to_all,
  exchange,  // messages of several ranks, together
  barrier,
  split,
  all_gather_text,
};

/// What one rank issues. Sent as it is: all ranks are one build.
struct Signature {
  std::int64_t sequence = 0;  // of the group's collectives
  std::int64_t elements = 0;  // 0 where ranks may differ
  Collective collective = Collective::barrier;
  std::int32_t dtype = 0;
  std::int32_t root = -1;  // of a broadcast
  std::int32_t unused = 0;

  bool operator==(const Signature&) const = default;
  std::string to_string() const;  // "broadcast 7 of 64 f32 from rank 0"
};

/// "all-reduce"
std::string_view collective_name(Collective collective);

/// Which ranks of a group differ from most of them, and how; empty when all agree. Ranks are named
/// by `world_ranks`.
std::string describe_difference(const std::vector<Signature>& all,
                                const std::vector<int>& world_ranks);

}  // namespace sortie::trainer
