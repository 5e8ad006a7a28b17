// Added and special tokens: found in a text before it is cut into words.
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
  bool single_word = false;  // not inside a word
  bool left_strip = false;   // takes the white space before it, too
  bool right_strip = false;
  bool normalized = false;  // is looked for after normalisation, in its own normalised form
  bool special = false;     // is not shown by decoding
};

/// A stretch of a text: one added token, or text between them (id < 0).
struct AddedTokenPiece {
  std::int32_t id = -1;
  std::string_view text;
};

/// Finds any of some contents in a text: the leftmost, and of those the longest.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }
  /// Replaces `pieces` by those of `text` (valid UTF-8), none of them an empty text.
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
