// Rules of [runner.container] that involve several keys, and the mapping of its mounts. Pure
// functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/config/schema.h"
#include "common/config/validate.h"

namespace sortie::config {

/// Rules E1, E2, E4 and E5, which do not depend on the job's paths.
std::vector<Violation> check_container(const RunnerConfig& runner);

/// Rule E3: every path that a job of sortie-train reads or writes is under a mount. Call it after
/// resolve_paths(). Paths that begin with `{stage}` pass, because staged files are always mounted.
std::vector<Violation> check_mounted(const JobConfig& job);

/// The host path of a path inside the container; `path` itself if no mount contains it.
std::string on_host(const ContainerConfig& container, const std::string& path);

/// Whether `path` is `folder` or is below it; both are absolute.
bool lies_under(std::string_view path, std::string_view folder);

}  // namespace sortie::config
