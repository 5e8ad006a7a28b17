// The parts of a sentencepiece .model file (a protobuf message) that encoding depends on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sortie::trainer::spm {

struct Piece {
  enum class Type { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  std::string text{};
  float score = 0.0f;
  Type type = Type::normal;
};

struct Model {
  enum class Type { unigram = 1, bpe = 2, word = 3, character = 4 };
  Type type = Type::unigram;
  std::vector<Piece> pieces{};  // by id
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  // Settings of the normaliser.
  std::string charsmap{};  // precompiled rules; empty = none
  bool dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

/// Returns nullopt if the bytes are not such a message. Ignores unknown fields.
std::optional<Model> parse_model(std::string_view bytes);

/// Returns the length of a character by its first byte, as the library does.
inline std::size_t char_bytes(char first) {
  return static_cast<std::size_t>(
      "\1\1\1\1\1\1\1\1\1\1\1\1\2\2\3\4"[(static_cast<unsigned char>(first)) >> 4]);
}

/// Represents a space in pieces.
inline constexpr std::string_view kSpace = "\xe2\x96\x81";

}  // namespace sortie::trainer::spm
