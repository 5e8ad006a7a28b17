// A code of RunnerError besides error_code_name().
#pragma once

#include <string_view>

namespace sortie::wire {

/// The runner could not remove something without living processes. The message says what, and how
/// to remove it; the ends of the ranks count as they are.
inline constexpr std::string_view kLeftBehind = "left_behind";

}  // namespace sortie::wire
