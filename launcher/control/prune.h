// `sortie prune`: removes the folders of ended runs.
#pragma once

#include <string>

#include "common/base/result.h"

namespace sortie::launcher {

struct PruneRequest {
  std::string log_dir;
  int keep = -1;           // the latest so many stay; -1: not given
  std::string older_than;  // only what ended longer ago; empty: not given
  bool dry_run = false;
};

/// A line for each run: removed, or kept and why. Never removes a living run, or one that was lost
/// within a day, or within the time that its hosts hold its ranks.
Result<std::string> prune(const PruneRequest& request);

}  // namespace sortie::launcher
