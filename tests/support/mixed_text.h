// Generates text of every kind from tests/data/tokenizer/pieces.json and a seed. It equals the text
// for which scripts/make_tokenizer_fixtures.py ran the `tokenizers` package.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sortie::test {

class MixedText {
 public:
  /// Reads `folder`/pieces.json.
  explicit MixedText(const std::string& folder);

  /// Returns at least `chars` characters; some bytes are not UTF-8.
  std::string make(std::uint64_t seed, std::size_t chars) const;

 private:
  struct Script {
    char32_t first;
    std::uint64_t count;
  };
  using Pieces = std::vector<std::string>;
  Pieces words_, tails_, codes_, spaces_, emoji_, numbers_, marks_, added_, bad_;
  std::vector<Script> scripts_;
};

/// A text with 4096 code points from `first` on, each next to the characters at which words are
/// split.
std::string every_char(char32_t first);

/// FNV-1a over the little-endian bytes of the values, as 16 hexadecimal digits.
std::string fnv(std::string_view bytes);
std::string fnv(std::span<const std::int32_t> ids);

}  // namespace sortie::test
