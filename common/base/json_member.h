// Reads members of a JSON object that may be missing or have another type, because the file may
// have been edited by hand, or another program or host wrote the text. Such a member reads as zero,
// empty or false; so does every member of a value that is no object.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sortie::json_member {

inline double number(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>() : 0.0;
}

/// Clamped to 0 to 4e9.
inline std::uint32_t u32(const nlohmann::json& object, const char* key) {
  return static_cast<std::uint32_t>(std::clamp(number(object, key), 0.0, 4e9));
}

/// 0 also for a number that is negative or has a fraction.
inline std::uint64_t u64(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_unsigned() ? it->get<std::uint64_t>() : 0;
}

inline std::string text(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

inline bool flag(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_boolean() && it->get<bool>();
}

/// The strings of an array; other elements are skipped.
inline std::vector<std::string> texts(const nlohmann::json& object, const char* key) {
  std::vector<std::string> out;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return out;
  for (const nlohmann::json& item : *it)
    if (item.is_string()) out.push_back(item.get<std::string>());
  return out;
}

}  // namespace sortie::json_member
