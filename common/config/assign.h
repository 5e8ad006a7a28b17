// One parsed value into one field of a JobConfig, with the checks of its kind and rule.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/config/document.h"
#include "common/config/fields.h"

namespace sortie::config {

struct AssignError {
  Position at;          // of the value, or of the bad item in it
  std::string message;  // "why; what to do"
};

/// Writes `value` into `job`; with errors the field keeps its value.
std::vector<AssignError> assign(const Field& field, const Value& value, JobConfig& job);

/// The right side of --set for a field of `kind`: TOML, and where that is no TOML or the field is
/// text (or a duration), the characters themselves.
Value override_value(Kind kind, std::string_view text);

}  // namespace sortie::config
