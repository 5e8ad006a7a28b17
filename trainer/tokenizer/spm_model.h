// A sentencepiece .model file: the parts of its protobuf message that encoding depends on.
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
  // Of the normaliser.
  std::string charsmap{};  // precompiled rules; empty = none
  bool dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

/// Absent when the bytes are no such message. Unknown fields are passed over.
std::optional<Model> parse_model(std::string_view bytes);

/// How the library counts the bytes of a character by the first of them.
inline std::size_t char_bytes(char first) {
  return static_cast<std::size_t>(
      "\1\1\1\1\1\1\1\1\1\1\1\1\2\2\3\4"[(static_cast<unsigned char>(first)) >> 4]);
}

/// What stands for a space in pieces.
inline constexpr std::string_view kSpace = "\xe2\x96\x81";

}  // namespace sortie::trainer::spm
