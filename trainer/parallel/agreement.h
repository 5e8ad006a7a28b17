// The debug mode of collectives (SORTIE_COMM_DEBUG=1): before each collective, its ranks compare
// what they are about to issue.
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
  exchange,  // point-to-point messages that all ranks of a group issue as one collective
  barrier,
  split,
  all_gather_text,
};

/// The collective that one rank issues. Sent as raw bytes: all ranks run the same build.
struct Signature {
  std::int64_t sequence = 0;  // among the collectives of the group
  std::int64_t elements = 0;  // 0 if the counts of ranks may differ
  Collective collective = Collective::barrier;
  std::int32_t dtype = 0;
  std::int32_t root = -1;  // of a broadcast, else -1
  std::int32_t unused = 0;

  bool operator==(const Signature&) const = default;
  std::string to_string() const;  // "broadcast 7 of 64 f32 from rank 0"
};

/// "all-reduce"
std::string_view collective_name(Collective collective);

/// Describes which ranks of a group issue another collective than the others; empty if all issue
/// the same. `all[i]` is the signature of world rank `world_ranks[i]`.
std::string describe_difference(const std::vector<Signature>& all,
                                const std::vector<int>& world_ranks);

}  // namespace sortie::trainer
