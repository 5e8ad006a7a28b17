// Members of a JSON object that a user has written, or an error that says what is wrong with them.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "common/base/result.h"

namespace sortie::trainer {

enum class JsonKind { text, whole_number, list, object };

/// A line as a JSON object. Errors are ErrorCode::data, without the place of the line.
Result<nlohmann::json> parse_json_object(std::string_view line);

/// The member `key` of an object, of that kind: `no "role"`, `"content" is a number, not a string`.
Result<const nlohmann::json*> json_member(const nlohmann::json& object, std::string_view key,
                                          JsonKind kind);
/// The same of something without a name: `what` is "a message".
Result<> check_json_kind(const nlohmann::json& value, std::string_view what, JsonKind kind);

}  // namespace sortie::trainer
