// Assigns one parsed value to one field of a JobConfig, after checking its kind and rule.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/document.h"
#include "common/config/fields.h"

namespace sortie::config {

struct AssignError {
  Position at;          // of the value, or of the bad item in it
  std::string message;  // "why; what to do"
};

/// Writes `value` into `job`. With errors the field keeps its old value.
std::vector<AssignError> assign(const Field& field, const Value& value, JobConfig& job);

/// Parses the right side of --set for a field of `kind`. The text is read as TOML; if it is no TOML
/// (a bare word, "30s"), or `kind` is text and it has no quotes, it is a string. ErrorCode::config
/// ("why; what to do") if it begins with a quote and is no string in quotes.
Result<Value> override_value(Kind kind, std::string_view text);
/// The text itself as a string.
Value text_value(std::string_view text);

}  // namespace sortie::config
