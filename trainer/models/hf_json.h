// Values of config.json, whatever JSON they are.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/base/result.h"

namespace sortie::trainer {

/// Of a value that has another meaning than anything that is computed here.
inline Error config_problem(std::string text) {
  return {ErrorCode::unsupported, std::move(text)};
}

/// Null where the key is absent or its value is null.
inline const nlohmann::json* find_value(const nlohmann::json& json, std::string_view key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

/// Sets `out` from a number, a whole one from a whole one; false when it is something else. Without
/// a value `out` stays.
template <class T>
bool read_number(const nlohmann::json* value, T& out) {
  if (value == nullptr) return true;
  if (std::is_integral_v<T> ? !value->is_number_integer() : !value->is_number()) return false;
  out = value->get<T>();
  return true;
}

}  // namespace sortie::trainer
