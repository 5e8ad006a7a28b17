// Rules of [runner.container] over several keys, and where its mounts put things. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/config/schema.h"
#include "common/config/validate.h"

namespace sortie::config {

/// Rules E1, E2, E4 and E5: what does not depend on the job's paths.
std::vector<Violation> check_container(const RunnerConfig& runner);

/// Rule E3, once paths are absolute: what a job of sortie-train reads and writes lies under a
/// mount. Nothing is said of paths that begin with `{stage}`: staged files are mounted anyway.
std::vector<Violation> check_mounted(const JobConfig& job);

/// Where hosts have what is at `path` inside; `path` itself when no mount has it.
std::string on_host(const ContainerConfig& container, const std::string& path);

/// Whether `path` is `folder` or lies below it; both are absolute.
bool lies_under(std::string_view path, std::string_view folder);

}  // namespace sortie::config
