// Members of JSON that somebody else wrote: another program, another host.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sortie::runner {

/// The text under `key`; empty where `object` is none, or has no text there.
inline std::string text_in(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return {};
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

}  // namespace sortie::runner
