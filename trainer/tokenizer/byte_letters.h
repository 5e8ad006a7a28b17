// The letters that stand for bytes in the tokens of byte-level BPE.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sortie::trainer::hf {

/// The character that stands for a byte.
char32_t char_of_byte(std::uint8_t byte);
/// The bytes that a token stands for; absent when one of its characters stands for none.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace sortie::trainer::hf
