// Character sets from which the forms of values are built.
#pragma once

#include <string_view>

namespace sortie::config {

inline constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
inline constexpr std::string_view kDigits = "0123456789";

}  // namespace sortie::config
