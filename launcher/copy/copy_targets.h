// Determines the hosts of a copy command from its options.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/run/run_command.h"

namespace sortie::launcher {

struct CopyTargets {
  config::RunnerConfig runner;
  std::vector<std::string> hosts;
};

/// `verb` appears in the error message if the options select no hosts.
Result<CopyTargets> copy_targets(const JobOptions& options, std::string_view verb);

}  // namespace sortie::launcher
