// Text forms of a config: as TOML, as a JSON schema, as a reference page, as a file to start from.
// All are generated from the field table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/config/load.h"

namespace sortie::config {

struct ShowOptions {
  bool all = false;     // every key, not only those that differ from their defaults
  bool origin = false;  // adds the origin of each value as a comment
};
/// The job as TOML. Loading it gives the same job.
std::string show(const LoadedJob& job, ShowOptions options = {});
/// The differences between two jobs, one key per line: "model.hidden_size: 256 -> 768"; "" if there
/// are none. Values of secrets are never shown: jobs that differ only in them count as equal.
std::string difference(const JobConfig& before, const JobConfig& after);
/// The keys of [model] that differ from those of model.preset, as "hidden_size = 256", except for
/// precision and fp8_scaling. Empty without a preset.
std::vector<std::string> beside_preset(const JobConfig& job);
/// A section and its subsections as TOML: the keys that differ from the defaults.
std::string section_toml(const JobConfig& job, std::string_view section);
/// JSON Schema (draft 2020-12) of a config file.
std::string json_schema();
/// docs/config.md.
std::string reference_markdown();
struct InitOptions {
  bool all = false;         // every key, not only those with kShown or kCommon
  std::string preset = {};  // name of an existing preset; empty = none
};
/// A commented config file to start from. Each key has its default, or the preset's value.
std::string init_text(const InitOptions& options = {});

}  // namespace sortie::config
