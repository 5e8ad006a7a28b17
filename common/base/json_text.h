// The text of JSON values.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sortie {

/// The text of a value, nlohmann::json or nlohmann::ordered_json: on one line, or with `indent`
/// spaces per level. Bytes that are not UTF-8, as names of files and texts of drivers may have,
/// become U+FFFD; dump() without this option throws. NaN and infinity become null.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace sortie
