// The characters that represent bytes in the tokens of byte-level BPE.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sortie::trainer::hf {

/// Returns the character that represents a byte.
char32_t char_of_byte(std::uint8_t byte);
/// Returns the bytes that a token represents; nullopt if one of its characters represents no byte.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace sortie::trainer::hf
