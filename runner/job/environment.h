// The environment of a rank, as a pure function of the job and a few facts of the host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/wire/message.h"

namespace sortie::runner {

/// The few variables of the runner's own environment that a rank inherits (PATH, HOME, LANG ...).
/// `environment` is a null-terminated array as `environ`.
std::vector<std::string> base_environment(char* const* environment);

struct RankContext {
  std::string config_path;            // SORTIE_CONFIG, empty = not set
  std::string socket_path;            // SORTIE_SOCKET, empty = not set
  std::string memory_folder;          // SORTIE_MEMORY, empty = not set
  std::string forward_path;           // SORTIE_FORWARD, with SORTIE_FORWARD_HOST; empty = not set
  std::uint32_t cpus = 1;             // of the host, shared by its ranks
  std::uint32_t threads = 0;          // OMP_NUM_THREADS; 0 = the rank's share of `cpus`
  bool amd_gpus = false;              // the host's GPUs are AMD's
  std::vector<std::string> pmix_env;  // "NAME=value", from sortie-pmix
  wire::Environment start_env;        // of Start
};

/// "NAME=value" lines, each name once, sorted. Later ones win: base, defaults (OMP_NUM_THREADS
/// ...), PMIx, job, Start, rank, and at last what nobody may change: PMIX_* and SORTIE_*.
/// CUDA_VISIBLE_DEVICES of the rank is left out on a host with AMD devices: HIP applies it too, to
/// what ROCR_VISIBLE_DEVICES has left and renumbered.
std::vector<std::string> rank_environment(const std::vector<std::string>& base,
                                          const wire::JobSpec& job, const wire::RankSpec& rank,
                                          const RankContext& context);

/// Environment of sortie-pmix: the base, and of the job's variables those that concern libpmix:
/// where it is, and its parameters, which must be the same in server and ranks.
std::vector<std::string> pmix_environment(std::vector<std::string> base, const wire::JobSpec& job);

/// The lines of PmixReady::env that concern `rank`: the common ones, then those after "#rank N".
std::vector<std::string> pmix_lines_for(const std::vector<std::string>& lines, std::uint32_t rank);

/// Value of `name` in "NAME=value" lines, empty when absent.
std::string_view env_value(const std::vector<std::string>& environment, std::string_view name);

/// Where execvp would look for `program`: itself when it holds a slash, else one path per PATH
/// entry.
std::vector<std::string> program_candidates(const std::string& program, std::string_view path);

}  // namespace sortie::runner
