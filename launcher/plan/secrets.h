// The values of a job's secrets. From here they are in memory and in frames, and nowhere else.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// Adds the variables of runner.secrets_file to runner.secret_env, and gives every variable whose
/// value is config::kSecretShown its value from there or from `environment`. Errors: a file that
/// others can read, a line of another form, a variable given twice or nowhere; none of them repeats
/// a value.
Result<> fill_in_secrets(config::RunnerConfig& runner, const Environment& environment);

/// Whether each of `names`, the secrets that an earlier plan of the job had, would have a value in
/// another one: in `runner`, whose secrets were filled in, or passed on from `environment`
/// (runner.env_passthrough). Error: names one that has none.
Result<> check_passed_secrets(const config::RunnerConfig& runner,
                              const std::vector<std::string>& names,
                              const Environment& environment);

/// What others can read is no secret, as with ssh's keys. `key` names the file in messages.
Result<> check_private(std::string_view key, const std::string& path);

}  // namespace sortie::launcher
