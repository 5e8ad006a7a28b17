// Looks up variables in a rank's environment.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "launcher/plan/plan.h"

namespace sortie::launcher {

inline std::string value_of(const Environment& env, std::string_view name) {
  const auto found = std::ranges::find(env, name, &Environment::value_type::first);
  return found == env.end() ? "(unset)" : found->second;
}

}  // namespace sortie::launcher
