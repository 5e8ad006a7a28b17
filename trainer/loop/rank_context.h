// RankContext: the identity of this process in the run, from the environment that the runner (or
// torchrun) sets.
#pragma once

#include <memory>
#include <string>

#include "common/base/result.h"
#include "trainer/loop/compute_device.h"
#include "trainer/metrics/progress_marks.h"

namespace sortie::trainer {

struct RankContext {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_ranks = 1;  // LOCAL_WORLD_SIZE
  /// SORTIE_HOST: the launcher's name of this host, which no other host of the job has; outside of
  /// a job the kernel's.
  std::string host;
  std::string run_id;  // empty outside of `sortie run`
  int attempt = 1;
  std::string config_path;        // SORTIE_CONFIG: the resolved config
  std::string socket_path;        // SORTIE_SOCKET: where events go; empty = to stdout
  std::string forward_path = {};  // SORTIE_FORWARD: for streams to other hosts through the launcher
  std::string memory_folder;      // SORTIE_MEMORY: for checkpoints in memory; empty = no holder
  // With several sites, each of which has separate ranks and a separate world. `sites` = 0: a run
  // without sites.
  std::string site;            // SORTIE_SITE
  int site_index = 0;          // SORTIE_SITE_INDEX, in config order
  int sites = 0;               // SORTIE_SITES
  int threads = 1;             // OMP_NUM_THREADS, else the usable cores
  ComputeDevice compute = {};  // chosen by trainer.device
  /// SORTIE_TIMED_PRODUCTS: number of ways to compute a product that a GPU times; 1 = the library's
  /// choice.
  int timed_products = 1;
  /// Its progress in training; copies of a context share it.
  std::shared_ptr<ProgressMarks> marks = std::make_shared<ProgressMarks>();
};

/// ErrorCode::config for a variable that is not a number or out of range.
Result<RankContext> rank_context_from_environment();

}  // namespace sortie::trainer
