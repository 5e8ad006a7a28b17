// From text to a checked JobConfig: TOML file, then --set overrides, then validation. toml++ stays
// in document.cc.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"

namespace sortie::config {

/// Where the value of a key came from: "default", "job.toml:12:9" or "--set".
using Origins = std::map<std::string, std::string>;

struct LoadedJob {
  JobConfig job;
  Origins origins;  // by full key, e.g. "runner.ssh.port"; keys not listed are defaults
};

/// Loads `file`, applies "key=value" `overrides` in order (value in TOML syntax; a bare word is a
/// string), and validates. ErrorCode::config with every problem, ErrorCode::not_found for no file.
Result<LoadedJob> load_job(const std::filesystem::path& file,
                           const std::vector<std::string>& overrides = {});

/// The same for text already in memory; `name` stands for the file in messages.
Result<LoadedJob> load_job_text(std::string_view text, std::string_view name,
                                const std::vector<std::string>& overrides = {});

/// The whole job as TOML, every key in table order; load_job_text(to_toml(job)) gives the same job.
std::string to_toml(const JobConfig& job);

}  // namespace sortie::config
