// Maps the ranks of a job to hosts, and names its fences. Independent of PMIx.
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
  /// Ranks of each host, ascending: Open MPI's shared memory transport requires local ranks in the
  /// order of the global ones, and hangs otherwise.
  std::vector<std::vector<std::uint32_t>> ranks;
  std::vector<std::uint32_t> host_of;  // rank -> index into hosts
  std::uint32_t my_host = 0;

  std::uint32_t world_size() const { return static_cast<std::uint32_t>(host_of.size()); }
  bool is_local(std::uint32_t rank) const {
    return rank < host_of.size() && host_of[rank] == my_host;
  }

  /// ErrorCode::protocol if the setup is inconsistent: a rank occurs twice or is missing, a host
  /// occurs twice, or local_ranks differ from the map.
  static Result<JobMap> from_setup(const wire::PmixSetup& setup);
};

/// Formats ranks as "0-3,7": sorted, without duplicates, runs folded.
std::string fold_ranks(std::vector<std::uint32_t> ranks);

/// Names fences so that all hosts give the same fence the same name. A fence is identified by its
/// participants and by the number of earlier fences of exactly these ranks. All ranks enter such
/// fences in the same order, because a fence is collective.
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
