// The config in words: shown, as a JSON schema, as a reference page, as a file to start from. All
// of it comes from the field table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/config/load.h"

namespace sortie::config {

struct ShowOptions {
  bool all = false;     // every key; else those that differ from their defaults
  bool origin = false;  // with the place that each value comes from, as a comment
};
/// The job as TOML, which loads to the same job.
std::string show(const LoadedJob& job, ShowOptions options = {});
/// What differs between two jobs, a key a line: "model.hidden_size: 256 -> 768"; "" when nothing
/// does. Values of secrets are never shown: where only they differ, nothing does.
std::string difference(const JobConfig& before, const JobConfig& after);
/// The keys of [model] that differ from those of model.preset, as "hidden_size = 256"; none
/// without a preset.
std::vector<std::string> beside_preset(const JobConfig& job);
/// A section, with those below it, as TOML: what differs from the defaults.
std::string section_toml(const JobConfig& job, std::string_view section);
/// JSON Schema (draft 2020-12) of a config file.
std::string json_schema();
/// docs/config.md.
std::string reference_markdown();
struct InitOptions {
  bool all = false;         // every key; else those that people set
  std::string preset = {};  // of model.preset; must exist
};
/// A commented config file to start from, each key at its default.
std::string init_text(const InitOptions& options = {});

}  // namespace sortie::config
