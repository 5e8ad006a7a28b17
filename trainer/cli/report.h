// Messages of the verbs of sortie-train to the user.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace sortie::trainer {

/// Prints the error of a failed command to stderr. Returns the exit code.
int report_error(std::string_view command, const Result<>& result);

/// "1.5 GB", "312 B": decimal units.
std::string human_bytes(std::uint64_t bytes);

}  // namespace sortie::trainer
