// The one table of config keys. Loading, --set, `config show`, the JSON schema, the reference page
// and `config init` are all driven by it; a key exists exactly when it is listed here.
#pragma once

#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/config/schema.h"

namespace sortie::config {

using StringMap = std::map<std::string, std::string>;

/// How to reach the member in a JobConfig; the alternative is the key's type.
using Member =
    std::variant<bool& (*)(JobConfig&), std::int64_t& (*)(JobConfig&), double& (*)(JobConfig&),
                 std::string& (*)(JobConfig&), Milliseconds& (*)(JobConfig&),
                 std::vector<std::string>& (*)(JobConfig&), StringMap& (*)(JobConfig&)>;

struct Field {
  std::string_view key;  // "runner.ssh.port"
  Member member;
  std::string_view help;                                  // one sentence
  double low = -std::numeric_limits<double>::infinity();  // numbers; milliseconds for durations
  double high = std::numeric_limits<double>::infinity();
  std::vector<std::string_view> choices;  // strings; empty = any
  bool is_path = false;  // relative to the folder where sortie runs; "~/" is the home folder

  std::string_view section() const { return key.substr(0, key.rfind('.')); }
  std::string_view name() const { return key.substr(key.rfind('.') + 1); }
};

/// In the order of the sections and of their structs.
const std::vector<Field>& fields();
const Field* find_field(std::string_view key);

/// "integer", "number", "boolean", "string", "duration", "list of strings", "table of strings".
std::string_view type_name(const Field& field);
/// The value as TOML: `"30s"`, `[1, 2]`, `{ A = "b" }`.
std::string toml_value(const Field& field, const JobConfig& job);
/// "30s", "1500ms", "2m": the shortest exact form.
std::string format_duration(Milliseconds duration);
/// A TOML basic string with everything escaped that has to be.
std::string quote(std::string_view text);

/// Sections in table order: "runner", "runner.ssh", "logger" ...
std::vector<std::string_view> sections();

/// The candidate nearest to `name` by edit distance, empty when none is near.
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace sortie::config
