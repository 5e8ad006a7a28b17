// Small things that a rank finds in a container, and the look at paths that container-init's binary
// does for the runner.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/wire/message.h"

namespace sortie::runner::container {

/// "NAME=value" below all variables of the job: what MPI libraries need to know of containers.
std::vector<std::string> default_environment(const wire::JobSpec& job);

/// `sortie-runner missing-paths PATH...`: prints those that are not there, with the reason, one a
/// line. Returns the exit code.
int missing_paths(std::span<char* const> paths);

}  // namespace sortie::runner::container
