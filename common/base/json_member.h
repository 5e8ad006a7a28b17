// Members of a JSON object that may be missing or of another type, because somebody may have edited
// the file: read as zero, empty or false then.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace sortie::json_member {

inline double number(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>() : 0.0;
}

/// Kept within 0 and 4e9.
inline std::uint32_t u32(const nlohmann::json& object, const char* key) {
  return static_cast<std::uint32_t>(std::clamp(number(object, key), 0.0, 4e9));
}

inline std::string text(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

inline bool flag(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_boolean() && it->get<bool>();
}

}  // namespace sortie::json_member
