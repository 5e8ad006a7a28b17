// Loads a checked JobConfig: the TOML file, then --set overrides, then validation.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "common/config/validate.h"

namespace sortie::config {

/// Origin of the value of each key: "default", "job.toml:12:9", "--set" or "preset NAME".
using Origins = std::map<std::string, std::string>;

struct LoadedJob {
  JobConfig job;
  Origins origins;  // by full key, e.g. "runner.ssh.port"; keys not listed are defaults
  /// Settings that are valid but may not be what the user meant, one sentence each.
  std::vector<std::string> warnings;
};

/// Called after the file and the overrides were read, before the rules are checked. It may change
/// the job, and sets the origin of each key that it changes, such as "--hosts". It returns
/// violations beyond those of validate(), which are reported together with all other problems. In
/// them, a key that begins with "--" is an option of the command line.
using Amend = std::function<std::vector<Violation>(LoadedJob&)>;

/// Loads `file`, applies the "key=value" `overrides` in order (the value is TOML; a bare word is a
/// string), and validates. Fails with ErrorCode::config and every problem, or with
/// ErrorCode::not_found if the file does not exist.
Result<LoadedJob> load_job(const std::filesystem::path& file,
                           const std::vector<std::string>& overrides = {}, const Amend& amend = {});

/// The same for text in memory; `name` stands for the file in messages.
Result<LoadedJob> load_job_text(std::string_view text, std::string_view name,
                                const std::vector<std::string>& overrides = {},
                                const Amend& amend = {});

/// The whole job as TOML, every key in table order. load_job_text(to_toml(job)) gives the same job.
std::string to_toml(const JobConfig& job);

}  // namespace sortie::config
