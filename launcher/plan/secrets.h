// The values of a job's secrets. They exist only in memory and in frames.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// Adds the variables of runner.secrets_file to runner.secret_env, and replaces each value
/// config::kSecretShown by the value from there or from `environment`. Errors: the file is
/// accessible to other users, a line is malformed, a variable has two values or none. Messages
/// never contain a value.
Result<> fill_in_secrets(config::RunnerConfig& runner, const Environment& environment);

/// Checks that each of `names`, the secrets of an earlier plan of the job, would have a value in a
/// new plan: in `runner`, after fill_in_secrets(), or passed through from `environment`
/// (runner.env_passthrough). The error names one without a value.
Result<> check_passed_secrets(const config::RunnerConfig& runner,
                              const std::vector<std::string>& names,
                              const Environment& environment);

/// Checks that a file is private, like an SSH key: a regular file of this user or root,
/// inaccessible to others. `key` names the file in messages.
Result<> check_private(std::string_view key, const std::string& path);

}  // namespace sortie::launcher
