// Reads values of config.json, which may be of any JSON type.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/base/result.h"

namespace sortie::trainer {

/// The error for a value that is not implemented here.
inline Error config_problem(std::string text) {
  return {ErrorCode::unsupported, std::move(text)};
}

/// Returns the value of a key; nullptr if the key is absent or its value is null.
inline const nlohmann::json* find_value(const nlohmann::json& json, std::string_view key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

/// Sets `out` to a number, which must be an integer if T is one; returns false if it is anything
/// else. If `value` is nullptr, returns true and leaves `out` unchanged.
template <class T>
bool read_number(const nlohmann::json* value, T& out) {
  if (value == nullptr) return true;
  if (std::is_integral_v<T> ? !value->is_number_integer() : !value->is_number()) return false;
  out = value->get<T>();
  return true;
}

}  // namespace sortie::trainer
