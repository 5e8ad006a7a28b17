#include "trainer/tokenizer/added_tokens.h"

#include <algorithm>

#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer {
namespace {

/// The character that ends at `end`.
char32_t char_before(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  const char* at = text.data() + begin;
  return take_char(at);
}

bool is_space(char32_t c) {
  return UnicodeFlags::get().char_class(c) == CharClass::space;
}

bool is_inside_word(std::string_view text, std::size_t begin, std::size_t end) {
  const UnicodeFlags& flags = UnicodeFlags::get();
  if (begin > 0 && flags.is_word(char_before(text, begin))) return true;
  const char* after = text.data() + end;
  return end < text.size() && flags.is_word(take_char(after));
}

std::size_t space_begin(std::string_view text, std::size_t end) {
  while (end > 0 && is_space(char_before(text, end))) {
    --end;
    while ((static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  }
  return end;
}

std::size_t space_end(std::string_view text, std::size_t begin) {
  while (begin < text.size()) {
    const char* at = text.data() + begin;
    if (!is_space(take_char(at))) break;
    begin = static_cast<std::size_t>(at - text.data());
  }
  return begin;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_)
    first_bytes_.set(static_cast<unsigned char>(token.content.front()));
}

AddedTokenFinder::Match AddedTokenFinder::find(std::string_view text, std::size_t from) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    if (!first_bytes_[static_cast<unsigned char>(text[at])]) continue;
    // Narrows the range of sorted contents byte by byte. A content that ends here is its first.
    auto low = tokens_.begin();
    auto high = tokens_.end();
    Match match;
    for (std::size_t depth = 0; low != high; ++depth) {
      if (low->content.size() == depth) {
        match = {at, at + depth, static_cast<std::size_t>(low - tokens_.begin())};
        ++low;
      }
      if (at + depth == text.size()) break;
      const auto byte = static_cast<unsigned char>(text[at + depth]);
      const auto byte_of = [depth](const AddedToken& token) {
        return static_cast<unsigned char>(token.content[depth]);
      };
      low =
          std::partition_point(low, high, [&](const auto& token) { return byte_of(token) < byte; });
      high = std::partition_point(low, high,
                                  [&](const auto& token) { return byte_of(token) <= byte; });
    }
    if (match.begin != std::string_view::npos) return match;
  }
  return {};
}

void AddedTokenFinder::split(std::string_view text, std::vector<AddedTokenPiece>& pieces) const {
  pieces.clear();
  std::size_t done = 0;
  std::size_t from = 0;
  while (!tokens_.empty()) {
    const Match match = find(text, from);
    if (match.begin == std::string_view::npos) break;
    from = match.end;
    const AddedToken& token = tokens_[match.token];
    if (token.single_word && is_inside_word(text, match.begin, match.end)) continue;
    std::size_t begin = match.begin;
    std::size_t end = match.end;
    if (token.left_strip) begin = std::max(space_begin(text.substr(0, begin), begin), done);
    if (token.right_strip) end = space_end(text, end);
    if (done < begin) pieces.push_back({-1, text.substr(done, begin - done)});
    pieces.push_back({token.id, text.substr(begin, end - begin)});
    done = end;
  }
  if (done < text.size()) pieces.push_back({-1, text.substr(done)});
}

}  // namespace sortie::trainer
