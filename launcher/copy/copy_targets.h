// The hosts of a command that copies, from its options.
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

/// `verb` is named in the error for options without hosts.
Result<CopyTargets> copy_targets(const JobOptions& options, std::string_view verb);

}  // namespace sortie::launcher
