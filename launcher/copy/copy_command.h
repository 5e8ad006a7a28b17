// `sortie push` and `sortie pull`: copy files to and from hosts.
#pragma once

#include <string>
#include <vector>

#include "launcher/copy/tree_upload.h"
#include "launcher/run/run_command.h"

namespace sortie::launcher {

struct CopyOptions {
  JobOptions job;  // selects hosts and how to reach them
  std::vector<std::string> paths;
  RelayMode relay = RelayMode::automatic;
  bool json = false;
};

/// Copies to hosts. paths: LOCAL... REMOTE. Returns the exit code.
int push_files(const CopyOptions& options);
/// Copies from hosts. paths: REMOTE... LOCALDIR; writes to LOCALDIR/HOST/. Returns the exit code.
int pull_files(const CopyOptions& options);

}  // namespace sortie::launcher
