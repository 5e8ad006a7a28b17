// Lines of outer.log, the coordinator's memory over supervisors.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sortie::launcher {

inline std::string outer_line(const nlohmann::ordered_json& fields) {
  return fields.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace sortie::launcher
