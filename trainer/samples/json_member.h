// Reads members of a JSON object that a user has written. Errors say what is wrong with them.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "common/base/result.h"

namespace sortie::trainer {

enum class JsonKind { text, whole_number, list, object };

/// Parses a line as a JSON object. Errors are ErrorCode::data and do not name the line.
Result<nlohmann::json> parse_json_object(std::string_view line);

/// Returns the member `key`, which must be of this kind; points into `object`. Errors: `no "role"`,
/// `"content" is a number, not a string`.
Result<const nlohmann::json*> json_member(const nlohmann::json& object, std::string_view key,
                                          JsonKind kind);
/// Checks the kind of a value without a key. `what` names it in errors: "a message".
Result<> check_json_kind(const nlohmann::json& value, std::string_view what, JsonKind kind);

}  // namespace sortie::trainer
