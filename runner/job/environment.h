// Builds the environment of a rank: a pure function of the job and a few facts about the host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/wire/message.h"

namespace sortie::runner {

/// The variables of the runner's own environment that a rank inherits: PATH, HOME, LANG and a few
/// others. `environment` is a null-terminated array like `environ`. Adds a default PATH if there is
/// none.
std::vector<std::string> base_environment(char* const* environment);

struct RankContext {
  std::string config_path;            // SORTIE_CONFIG, empty = not set
  std::string socket_path;            // SORTIE_SOCKET, empty = not set
  std::string memory_folder;          // SORTIE_MEMORY, empty = not set
  std::string forward_path;           // SORTIE_FORWARD; empty = not set
  std::uint32_t cpus = 1;             // of the host; its ranks share them
  std::uint32_t threads = 0;          // OMP_NUM_THREADS; 0 = the rank's share of `cpus`
  bool amd_gpus = false;              // the host's GPUs are from AMD
  std::vector<std::string> pmix_env;  // "NAME=value", from sortie-pmix
  wire::Environment start_env;        // environment of the Start message
};

/// Returns "NAME=value" lines, sorted, each name once. Later sources override earlier ones: base,
/// defaults (OMP_NUM_THREADS ...), PMIx, job, Start, rank, and last the PMIX_*, OMPI_MCA_pmix_* and
/// SORTIE_* variables that the runner sets, which no config can override. On a host with AMD GPUs
/// the rank's CUDA_* variables are left out: HIP would apply CUDA_VISIBLE_DEVICES to the devices
/// that ROCR_VISIBLE_DEVICES has already filtered and renumbered.
std::vector<std::string> rank_environment(const std::vector<std::string>& base,
                                          const wire::JobSpec& job, const wire::RankSpec& rank,
                                          const RankContext& context);

/// Environment of sortie-pmix: the base, and those of the job's variables that concern libpmix: its
/// path and its parameters, which must be the same in the server and in the ranks.
std::vector<std::string> pmix_environment(std::vector<std::string> base, const wire::JobSpec& job);

/// Returns the lines of PmixReady::env that apply to `rank`: the common ones, and those after
/// "#rank N".
std::vector<std::string> pmix_lines_for(const std::vector<std::string>& lines, std::uint32_t rank);

/// Value of `name` in "NAME=value" lines; empty if absent.
std::string_view env_value(const std::vector<std::string>& environment, std::string_view name);

/// Paths at which execvp would look for `program`: `program` itself if it contains a slash, else
/// one per PATH entry. An empty `path` means the default PATH.
std::vector<std::string> program_candidates(const std::string& program, std::string_view path);

}  // namespace sortie::runner
