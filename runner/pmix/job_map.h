// Where the ranks of a job live, checked once, and the names of its fences. No PMIx in here.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/wire/message.h"

namespace sortie::runner {

struct JobMap {
  std::vector<std::string> hosts;
  /// Of each host, ascending: Open MPI's shared memory transport counts on local ranks being in the
  /// order of the global ones, and hangs where they are not.
  std::vector<std::vector<std::uint32_t>> ranks;
  std::vector<std::uint32_t> host_of;  // rank -> index into hosts
  std::uint32_t my_host = 0;

  std::uint32_t world_size() const { return static_cast<std::uint32_t>(host_of.size()); }
  bool is_local(std::uint32_t rank) const {
    return rank < host_of.size() && host_of[rank] == my_host;
  }

  /// ErrorCode::protocol when the setup contradicts itself: a rank twice or missing, a host twice,
  /// local_ranks other than the map's.
  static Result<JobMap> from_setup(const wire::PmixSetup& setup);
};

/// "0-3,7": ranks sorted, each once, runs folded.
std::string fold_ranks(std::vector<std::uint32_t> ranks);

/// Names fences so that all hosts name the same fence equally: a fence is known by who takes part
/// and by how many fences of exactly those ranks came before. Ranks enter such fences in the same
/// order everywhere, because a fence is collective.
class FenceNames {
 public:
  struct Name {
    std::string key;               // "0-63#2"
    std::uint32_t node_count = 0;  // hosts that hold a participant
  };
  /// `ranks` must be ranks of the job.
  Name next(const JobMap& job, const std::vector<std::uint32_t>& ranks);

 private:
  std::map<std::string, std::uint64_t> count_;
};

}  // namespace sortie::runner
