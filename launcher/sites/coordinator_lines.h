// Lines of outer.log, which keeps the state of the coordinator for the next supervisor, and texts
// for sites.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/json_text.h"

namespace sortie::launcher {

inline std::string outer_line(const nlohmann::ordered_json& fields) {
  return json_text(fields) + "\n";
}

inline std::string left_out_text(std::int64_t round, const std::string& site) {
  return fmt::format("round {} was committed without site {}; join again", round, site);
}

}  // namespace sortie::launcher
