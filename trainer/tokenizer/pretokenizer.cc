#include "trainer/tokenizer/pretokenizer.h"

#include <array>
#include <cstdint>

#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer {
namespace {

constexpr unsigned bit(CharClass c) {
  return 1u << static_cast<unsigned>(c);
}

constexpr std::array<CharClass, 128> kAsciiClass = [] {
  std::array<CharClass, 128> classes{};
  for (std::size_t c = 0; c < classes.size(); ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool space = c == ' ' || (c >= 9 && c <= 13);
    classes[c] = letter                 ? CharClass::letter
                 : c >= '0' && c <= '9' ? CharClass::number
                 : space                ? CharClass::space
                                        : CharClass::other;
  }
  return classes;
}();

/// Walks over a text by class. Positions are pointers; `end` has no class.
class Scanner {
 public:
  Scanner(std::string_view text, const UnicodeFlags& flags)
      : end_(text.data() + text.size()), flags_(flags) {}

  const char* end() const { return end_; }

  /// The class at `at` (below end()), whose character ends at `next`.
  CharClass class_at(const char* at, const char*& next) const {
    const auto byte = static_cast<unsigned char>(*at);
    if (byte < 0x80) {
      next = at + 1;
      return kAsciiClass[byte];
    }
    next = at;
    return flags_.char_class(take_char(next));
  }

  bool is(unsigned classes, const char* at, const char*& next) const {
    return at < end_ && (classes >> static_cast<unsigned>(class_at(at, next)) & 1) != 0;
  }

  /// The end of the run of characters of `classes` from `at` on.
  const char* skip(unsigned classes, const char* at) const {
    const char* next = at;
    while (is(classes, at, next)) at = next;
    return at;
  }

  const char* skip_newlines(const char* at) const {
    while (at < end_ && (*at == '\r' || *at == '\n')) ++at;
    return at;
  }

  /// \s+(?!\S)|\s+ : white space, but its last character is left to a word after it.
  const char* skip_space(const char* at) const {
    const char* last = at;
    const char* next = at;
    const char* p = at;
    while (is(bit(CharClass::space), p, next)) {
      last = p;
      p = next;
    }
    return p == end_ || last == at ? p : last;
  }

 private:
  const char* end_;
  const UnicodeFlags& flags_;
};

/// '(s|t|re|ve|m|ll|d) at an apostrophe: how many bytes it takes, 0 for none.
std::size_t contraction(std::string_view text, bool any_case) {
  const auto at = [&](std::size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  switch (at(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return at(2) == 'e' ? 3 : 0;
    case 'l':
      return at(2) == 'l' ? 3 : 0;
    case '\xc5':  // U+017F, the long s, is an s in any case
      return any_case && at(2) == '\xbf' ? 3 : 0;
    default:
      return 0;
  }
}

constexpr unsigned kLetter = bit(CharClass::letter);
constexpr unsigned kNumber = bit(CharClass::number);
constexpr unsigned kSpace = bit(CharClass::space);
constexpr unsigned kMark = bit(CharClass::mark);
constexpr unsigned kOther = bit(CharClass::other);

/// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
const char* gpt2_end(const Scanner& scan, const char* at) {
  if (*at == '\'')
    if (const std::size_t bytes =
            contraction({at, static_cast<std::size_t>(scan.end() - at)}, false);
        bytes > 0)
      return at + bytes;
  const char* const first = *at == ' ' ? at + 1 : at;
  const char* next = first;
  if (scan.is(kLetter, first, next)) return scan.skip(kLetter, next);
  if (scan.is(kNumber, first, next)) return scan.skip(kNumber, next);
  if (scan.is(kOther | kMark, first, next)) return scan.skip(kOther | kMark, next);
  return scan.skip_space(at);
}

/// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[LETTERS]+|\p{N}{1,DIGITS}| ?[OTHERS]+[\r\n]*|
/// \s*[\r\n]+|\s+(?!\S)|\s+ , where LETTERS is \p{L} or \p{L}\p{M}, and OTHERS what is neither
/// space nor number nor one of LETTERS.
const char* llama_end(const Scanner& scan, const char* at, unsigned letters, int digits) {
  if (*at == '\'')
    if (const std::size_t bytes =
            contraction({at, static_cast<std::size_t>(scan.end() - at)}, true);
        bytes > 0)
      return at + bytes;
  const char* next = at;
  const char* after = at;
  const auto first = scan.class_at(at, next);
  const bool joins =
      first != CharClass::letter && first != CharClass::number && *at != '\r' && *at != '\n';
  if (joins && scan.is(letters, next, after)) return scan.skip(letters, after);
  if ((letters >> static_cast<unsigned>(first) & 1) != 0) return scan.skip(letters, next);
  if (first == CharClass::number) {
    at = next;
    while (--digits > 0 && scan.is(kNumber, at, next)) at = next;
    return at;
  }
  const unsigned others = (kOther | kMark) & ~letters;
  const char* const body = *at == ' ' ? at + 1 : at;
  if (scan.is(others, body, next)) return scan.skip_newlines(scan.skip(others, next));
  // White space. Up to its last line break, if it has one.
  const char* const space_end = scan.skip(kSpace, at);
  for (const char* p = space_end; p > at; --p)
    if (p[-1] == '\r' || p[-1] == '\n') return p;
  return scan.skip_space(at);
}

struct Known {
  WordPattern pattern;
  std::string_view name;
  std::string_view regex;
};

// clang-format off
constexpr std::array<Known, 4> kKnown = {{
    {WordPattern::gpt2, "gpt2",
     R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {WordPattern::llama3, "llama3",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {WordPattern::qwen2, "qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {WordPattern::qwen35, "qwen35",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
}};
// clang-format on

}  // namespace

std::optional<WordPattern> word_pattern_of_regex(std::string_view regex) {
  for (const Known& known : kKnown)
    if (known.regex == regex) return known.pattern;
  return std::nullopt;
}

std::string_view regex_of_word_pattern(WordPattern pattern) {
  for (const Known& known : kKnown)
    if (known.pattern == pattern) return known.regex;
  return {};
}

std::optional<WordPattern> word_pattern_by_name(std::string_view name) {
  for (const Known& known : kKnown)
    if (known.name == name) return known.pattern;
  return std::nullopt;
}

std::size_t find_word_cut(std::string_view text, std::size_t from) {
  const auto is_alnum = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  for (std::size_t at = text.find('\n', from); at != std::string_view::npos && at + 1 < text.size();
       at = text.find('\n', at + 1))
    if (at > 0 && text[at - 1] > ' ' && text[at - 1] < 0x7f && is_alnum(text[at + 1]))
      return at + 1;
  return std::string_view::npos;
}

std::size_t word_end(WordPattern pattern, std::string_view text, std::size_t at) {
  static const UnicodeFlags& flags = UnicodeFlags::get();
  const Scanner scan(text, flags);
  const char* const begin = text.data() + at;
  const char* end = text.data() + text.size();
  switch (pattern) {
    case WordPattern::whole:
      break;
    case WordPattern::gpt2:
      end = gpt2_end(scan, begin);
      break;
    case WordPattern::llama3:
      end = llama_end(scan, begin, kLetter, 3);
      break;
    case WordPattern::qwen2:
      end = llama_end(scan, begin, kLetter, 1);
      break;
    case WordPattern::qwen35:
      end = llama_end(scan, begin, kLetter | kMark, 1);
      break;
  }
  return static_cast<std::size_t>(end - text.data());
}

}  // namespace sortie::trainer
