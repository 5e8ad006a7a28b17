// Reads members of JSON that another program or host wrote.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sortie::runner {

/// The string under `key`; empty if `object` is no object, or has no string there.
inline std::string text_in(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return {};
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

}  // namespace sortie::runner
