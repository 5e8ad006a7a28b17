// Added and special tokens, which are found in a text before it is split into words.
#pragma once

#include <bitset>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sortie::trainer {

struct AddedToken {
  std::int32_t id = 0;
  std::string content{};
  bool single_word = false;  // does not match next to a word character
  bool left_strip = false;   // also takes the white space before it
  bool right_strip = false;
  bool normalized = false;  // matched after normalisation, in its own normalised form
  bool special = false;     // omitted by decoding
};

/// A piece of a text: one added token, or the text between two of them (id < 0).
struct AddedTokenPiece {
  std::int32_t id = -1;
  std::string_view text;
};

/// Finds added tokens in a text: the leftmost match and, among matches that begin there, the
/// longest.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }
  /// Replaces `pieces` by the pieces of `text` (valid UTF-8). No piece is an empty text.
  void split(std::string_view text, std::vector<AddedTokenPiece>& pieces) const;

 private:
  struct Match {
    std::size_t begin = std::string_view::npos;
    std::size_t end = 0;
    std::size_t token = 0;
  };
  Match find(std::string_view text, std::size_t from) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::bitset<256> first_bytes_;
};

}  // namespace sortie::trainer
