// Layout of a Megatron .idx file; README.md has the grammar and a worked example.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace sortie::trainer {

inline constexpr std::string_view kIndexMagic{"MMIDIDX\0\0", 9};
inline constexpr std::uint64_t kIndexVersion = 1;
inline constexpr std::size_t kIndexHeaderBytes = 34;  // magic, version, type, two counts

/// Integer types for stored token ids. The values are the type codes in the file.
enum class TokenType : std::uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };

/// Returns the type for a code in the file; nullopt for floating-point and unknown codes.
constexpr std::optional<TokenType> token_type_from_code(std::uint8_t code) {
  return (code >= 1 && code <= 5) || code == 8 ? std::optional(static_cast<TokenType>(code))
                                               : std::nullopt;
}

constexpr std::size_t token_bytes(TokenType type) {
  switch (type) {
    case TokenType::u8:
    case TokenType::i8:
      return 1;
    case TokenType::i16:
    case TokenType::u16:
      return 2;
    case TokenType::i32:
      return 4;
    case TokenType::i64:
      return 8;
  }
  return 0;
}

/// Calls `use` with a value of the integer type in which the file stores ids of this type.
template <class Use>
auto with_token_type(TokenType type, Use use) {
  switch (type) {
    case TokenType::u8:
      return use(std::uint8_t{});
    case TokenType::i8:
      return use(std::int8_t{});
    case TokenType::i16:
      return use(std::int16_t{});
    case TokenType::u16:
      return use(std::uint16_t{});
    case TokenType::i32:
      return use(std::int32_t{});
    case TokenType::i64:
      return use(std::int64_t{});
  }
  std::unreachable();
}

constexpr std::string_view token_type_name(TokenType type) {
  switch (type) {
    case TokenType::u8:
      return "u8";
    case TokenType::i8:
      return "i8";
    case TokenType::i16:
      return "i16";
    case TokenType::i32:
      return "i32";
    case TokenType::i64:
      return "i64";
    case TokenType::u16:
      return "u16";
  }
  return "?";
}

/// The type that Megatron chooses for a vocabulary of this size, or u8 if that is enough.
constexpr TokenType token_type_for(std::int64_t vocab_size) {
  return vocab_size <= 256 ? TokenType::u8 : vocab_size < 65500 ? TokenType::u16 : TokenType::i32;
}

/// Little-endian load from any address: the arrays of an .idx are not aligned.
template <class T>
T load_unaligned(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace sortie::trainer
