// Defaults that differ inside a container, and the role of this binary that checks paths for the
// runner.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/wire/message.h"

namespace sortie::runner::container {

/// "NAME=value" lines with lower priority than all variables of the job: what MPI libraries must
/// know about containers.
std::vector<std::string> default_environment(const wire::JobSpec& job);

/// `sortie-runner missing-paths PATH...`: prints each path that does not exist, with the reason,
/// one per line. Returns the exit code.
int missing_paths(std::span<char* const> paths);

}  // namespace sortie::runner::container
