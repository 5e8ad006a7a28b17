// `sortie prune`: removes the folders of ended runs.
#pragma once

#include <string>

#include "common/base/result.h"

namespace sortie::launcher {

struct PruneRequest {
  std::string log_dir;
  int keep = -1;           // keep the latest `keep` runs; -1: not given
  std::string older_than;  // remove only runs that ended longer ago; empty: not given
  bool dry_run = false;
};

/// Removes ended runs. Returns one line per run: removed, or kept and why. Keeps runs that are
/// alive, and runs that were lost within the last day or within the time for which their hosts hold
/// ranks.
Result<std::string> prune(const PruneRequest& request);

}  // namespace sortie::launcher
