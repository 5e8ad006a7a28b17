// From text to a checked JobConfig: TOML file, then --set overrides, then validation. toml++ stays
// in document.cc.
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

/// Where the value of a key came from: "default", "job.toml:12:9", "--set" or "preset NAME".
using Origins = std::map<std::string, std::string>;

struct LoadedJob {
  JobConfig job;
  Origins origins;  // by full key, e.g. "runner.ssh.port"; keys not listed are defaults
  /// What is valid but may not be what the user meant, one sentence each.
  std::vector<std::string> warnings;
};

/// Called after the file and the overrides were read and before the rules are checked. It may
/// change the job (and sets the origin of what it changes, like "--hosts"), and returns the rules
/// that are broken beyond those of validate(). They are reported together with all other problems.
/// A key that begins with "--" is an option of the command line.
using Amend = std::function<std::vector<Violation>(LoadedJob&)>;

/// Loads `file`, applies "key=value" `overrides` in order (value in TOML syntax; a bare word is a
/// string), and validates. ErrorCode::config with every problem, ErrorCode::not_found for no file.
Result<LoadedJob> load_job(const std::filesystem::path& file,
                           const std::vector<std::string>& overrides = {}, const Amend& amend = {});

/// The same for text already in memory; `name` stands for the file in messages.
Result<LoadedJob> load_job_text(std::string_view text, std::string_view name,
                                const std::vector<std::string>& overrides = {},
                                const Amend& amend = {});

/// The whole job as TOML, every key in table order; load_job_text(to_toml(job)) gives the same job.
std::string to_toml(const JobConfig& job);

}  // namespace sortie::config
