// `sortie push` and `sortie pull`: from the command line to the exit code.
#pragma once

#include <string>
#include <vector>

#include "launcher/copy/tree_upload.h"
#include "launcher/run/run_command.h"

namespace sortie::launcher {

struct CopyOptions {
  JobOptions job;  // which hosts, and how they are reached
  std::vector<std::string> paths;
  RelayMode relay = RelayMode::automatic;
  bool json = false;
};

/// paths: LOCAL... REMOTE.
int push_files(const CopyOptions& options);
/// paths: REMOTE... LOCALDIR; what comes is in LOCALDIR/HOST/.
int pull_files(const CopyOptions& options);

}  // namespace sortie::launcher
