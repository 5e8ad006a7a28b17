// The config in words: shown, as a JSON schema, as a reference page, as a file to start from. All
// of it comes from the field table.
#pragma once

#include <string>
#include <string_view>

#include "common/config/load.h"

namespace sortie::config {

/// The job as TOML; `with_origin` adds where each value comes from as a comment.
std::string show(const LoadedJob& job, bool with_origin);
/// A section, with those below it, as TOML: what differs from the defaults.
std::string section_toml(const JobConfig& job, std::string_view section);
/// JSON Schema (draft 2020-12) of a config file.
std::string json_schema();
/// docs/config.md.
std::string reference_markdown();
/// A config file with every key, commented out at its default.
std::string init_text();

}  // namespace sortie::config
