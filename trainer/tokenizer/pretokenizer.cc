#include "trainer/tokenizer/pretokenizer.h"

#include <algorithm>
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
    const bool space = c == ' ' || (c >= 9 && c <= 13);
    classes[c] = c >= 'a' && c <= 'z'   ? CharClass::lower
                 : c >= 'A' && c <= 'Z' ? CharClass::upper
                 : c >= '0' && c <= '9' ? CharClass::number
                 : space                ? CharClass::space
                 : c < ' ' || c == 0x7f ? CharClass::other
                                        : CharClass::symbol;
  }
  return classes;
}();

/// Scans a text by character class. Positions are pointers. `end` has no class.
class Scanner {
 public:
  Scanner(std::string_view text, const UnicodeFlags& flags)
      : end_(text.data() + text.size()), flags_(flags) {}

  const char* end() const { return end_; }

  /// Returns the class of the character at `at` (below end()). Sets `next` to its end.
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

  /// Returns the end of the run of characters of `classes` that begins at `at`.
  const char* skip(unsigned classes, const char* at) const {
    const char* next = at;
    while (is(classes, at, next)) at = next;
    return at;
  }

  const char* skip_newlines(const char* at) const {
    while (at < end_ && (*at == '\r' || *at == '\n')) ++at;
    return at;
  }

  /// \s+(?!\S)|\s+ : white space, but its last character is left to a following word.
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

/// Returns the length of '(s|t|re|ve|m|ll|d) at an apostrophe; 0 for none.
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

constexpr unsigned kCaseless = bit(CharClass::letter);
constexpr unsigned kUpper = bit(CharClass::upper);
constexpr unsigned kLower = bit(CharClass::lower);
constexpr unsigned kLetter = kCaseless | kUpper | kLower;
constexpr unsigned kNumber = bit(CharClass::number);
constexpr unsigned kSpace = bit(CharClass::space);
constexpr unsigned kMark = bit(CharClass::mark);
constexpr unsigned kSymbol = bit(CharClass::symbol);
constexpr unsigned kOther = bit(CharClass::other);
/// [^\s\p{L}\p{N}]
constexpr unsigned kNoWord = kOther | kMark | kSymbol;

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
  if (scan.is(kNoWord, first, next)) return scan.skip(kNoWord, next);
  return scan.skip_space(at);
}

/// \p{N}{1,DIGITS} after its first digit, which ends at `at`.
const char* number_end(const Scanner& scan, const char* at, int digits) {
  const char* next = at;
  while (--digits > 0 && scan.is(kNumber, at, next)) at = next;
  return at;
}

/// \s*[\r\n]+|\s+(?!\S)|\s+ : white space, up to its last line break if it has one.
const char* space_end(const Scanner& scan, const char* at) {
  for (const char* p = scan.skip(kSpace, at); p > at; --p)
    if (p[-1] == '\r' || p[-1] == '\n') return p;
  return scan.skip_space(at);
}

/// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[LETTERS]+|\p{N}{1,DIGITS}| ?[OTHERS]+[\r\n]*|
/// \s*[\r\n]+|\s+(?!\S)|\s+ , where LETTERS is \p{L} or \p{L}\p{M}, and OTHERS is everything that
/// is neither space nor number nor one of LETTERS.
const char* llama_end(const Scanner& scan, const char* at, unsigned letters, int digits) {
  if (*at == '\'')
    if (const std::size_t bytes =
            contraction({at, static_cast<std::size_t>(scan.end() - at)}, true);
        bytes > 0)
      return at + bytes;
  const char* next = at;
  const char* after = at;
  const auto first = scan.class_at(at, next);
  const bool joins = (bit(first) & (kLetter | kNumber)) == 0 && *at != '\r' && *at != '\n';
  if (joins && scan.is(letters, next, after)) return scan.skip(letters, after);
  if ((bit(first) & letters) != 0) return scan.skip(letters, next);
  if (first == CharClass::number) return number_end(scan, next, digits);
  const unsigned others = kNoWord & ~letters;
  const char* const body = *at == ' ' ? at + 1 : at;
  if (scan.is(others, body, next)) return scan.skip_newlines(scan.skip(others, next));
  return space_end(scan, at);
}

/// Returns the end of [UPPER]*[LOWER]+ at `at` or, unless `lower_needed`, of [UPPER]+[LOWER]*,
/// where UPPER is \p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M} and LOWER is \p{Ll}\p{Lm}\p{Lo}\p{M}. Returns `at`
/// if neither matches.
const char* cased_end(const Scanner& scan, const char* at, bool lower_needed) {
  constexpr unsigned kBoth = kCaseless | kMark;
  const char* const upper_end = scan.skip(kUpper | kBoth, at);
  const char* const end = scan.skip(kLower | kBoth, upper_end);
  if (end > upper_end) return end;
  if (!lower_needed) return upper_end;
  // [UPPER]* backtracks until it gives back a character that is LOWER as well.
  const char* found = at;
  for (const char *p = at, *next = at; p < upper_end; p = next)
    if (scan.is(kBoth, p, next)) found = next;
  return found;
}

/// X?[UPPER]*[LOWER]+C?|X?[UPPER]+[LOWER]*C?|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n/]*|
/// \s*[\r\n]+|\s+(?!\S)|\s+ , where X is [^\r\n\p{L}\p{N}] and C is a contraction (if
/// `contractions`).
const char* cased_word_end(const Scanner& scan, const char* at, int digits, bool contractions) {
  const char* next = at;
  const auto first = scan.class_at(at, next);
  if (first == CharClass::number) return number_end(scan, next, digits);
  const bool joins = (bit(first) & kLetter) == 0 && *at != '\r' && *at != '\n';
  for (const bool lower_needed : {true, false})
    for (const char* const begin : {next, at}) {
      if (begin == next && !joins) continue;
      const char* const end = cased_end(scan, begin, lower_needed);
      if (end == begin) continue;
      if (!contractions || end == scan.end() || *end != '\'') return end;
      return end + contraction({end, static_cast<std::size_t>(scan.end() - end)}, true);
    }
  const char* const body = *at == ' ' ? at + 1 : at;
  if (scan.is(kNoWord, body, next)) {
    const char* end = scan.skip(kNoWord, next);
    while (end < scan.end() && (*end == '\r' || *end == '\n' || *end == '/')) ++end;
    return end;
  }
  return space_end(scan, at);
}

/// DeepSeek-V3 splits three times: at \p{N}{1,3}, then at runs of CJK characters, then the rest at
///   [!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|
///   \s+(?!\S)|\s+
/// which leaves gaps. For the third split, a number or a CJK character is the end of the text.
class DeepseekScanner {
 public:
  explicit DeepseekScanner(const Scanner& scan) : scan_(scan) {}

  const char* word_end(const char* at) const {
    const char* next = at;
    if (is_cjk(at, next)) {
      while (is_cjk(next, next)) {
      }
      return next;
    }
    const auto first = scan_.class_at(at, next);
    if (first == CharClass::number) return number_end(scan_, next, 3);
    if (const char* const end = match(at, next, first); end != at) return end;
    // A gap, which ends where the next match begins.
    for (at = next; is(kOther, at, next); at = next)
      if (const char* after = next; is(kLetter | kMark, next, after)) break;
    return at;
  }

 private:
  /// [\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]; moves `next` past it.
  bool is_cjk(const char* at, const char*& next) const {
    if (at >= scan_.end() || static_cast<unsigned char>(*at) < 0xe3) return false;
    const char* behind = at;
    const char32_t c = take_char(behind);
    const bool cjk = (c >= 0x4e00 && c <= 0x9fa5) || (c >= 0x3040 && c <= 0x30ff);
    if (cjk) next = behind;
    return cjk;
  }
  bool is(unsigned classes, const char* at, const char*& next) const {
    const char* ignored = at;
    return !is_cjk(at, ignored) && scan_.is(classes, at, next);
  }
  const char* skip(unsigned classes, const char* at) const {
    for (const char* next = at; is(classes, at, next);) at = next;
    return at;
  }
  static bool is_ascii_letter(char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }

  /// Matches the third pattern at a character of class `first` that ends at `next`. Returns `at` if
  /// there is no match.
  const char* match(const char* at, const char* next, CharClass first) const {
    const char* after = next;
    if (first == CharClass::symbol && static_cast<unsigned char>(*at) < 0x80 &&
        next < scan_.end() && is_ascii_letter(*next)) {
      while (next < scan_.end() && is_ascii_letter(*next)) ++next;
      return next;
    }
    const bool joins = (bit(first) & (kLetter | kSymbol)) == 0 && *at != '\r' && *at != '\n';
    if (joins && is(kLetter | kMark, next, after)) return skip(kLetter | kMark, after);
    if ((bit(first) & (kLetter | kMark)) != 0) return skip(kLetter | kMark, next);
    const char* const body = *at == ' ' ? at + 1 : at;
    if (is(kSymbol, body, after)) return scan_.skip_newlines(skip(kSymbol, after));
    if (first != CharClass::space) return at;
    const char* const end = skip(kSpace, at);
    for (const char* p = end; p > at; --p)
      if (p[-1] == '\r' || p[-1] == '\n') return p;
    return ends(end) ? end : scan_.skip_space(at);
  }
  /// Whether `at` is the end of the text for the third split.
  bool ends(const char* at) const {
    const char* next = at;
    return at == scan_.end() || is_cjk(at, next) || scan_.is(kNumber, at, next);
  }

  const Scanner& scan_;
};

struct Known {
  WordPattern pattern;
  std::string_view name;
  std::string_view regexes;  // one per line, in the order of application
};

// clang-format off
constexpr std::array<Known, 7> kKnown = {{
    {WordPattern::gpt2, "gpt2",
     R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {WordPattern::llama3, "llama3",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {WordPattern::qwen2, "qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {WordPattern::qwen35, "qwen35",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {WordPattern::o200k, "o200k",
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {WordPattern::tekken, "tekken",
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    // Three patterns, a line each.
    {WordPattern::deepseek_v3, "deepseek-v3",
     "\\p{N}{1,3}\n"
     "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+\n"
     R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
}};
// clang-format on

}  // namespace

std::optional<WordPattern> word_pattern_of_regexes(const std::vector<std::string>& regexes) {
  std::string lines;
  for (const std::string& regex : regexes) {
    if (!lines.empty()) lines += '\n';
    // Some files have literal line breaks in their patterns.
    for (const char c : regex) c == '\n' ? lines += "\\n" : c == '\r' ? lines += "\\r" : lines += c;
  }
  for (const Known& known : kKnown)
    if (known.regexes == lines) return known.pattern;
  return std::nullopt;
}

std::vector<std::string> regexes_of_word_pattern(WordPattern pattern) {
  std::vector<std::string> regexes;
  for (const Known& known : kKnown)
    if (known.pattern == pattern)
      for (std::string_view rest = known.regexes; !rest.empty();) {
        const std::size_t end = std::min(rest.find('\n'), rest.size());
        regexes.emplace_back(rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
      }
  return regexes;
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
    case WordPattern::o200k:
      end = cased_word_end(scan, begin, 3, true);
      break;
    case WordPattern::tekken:
      end = cased_word_end(scan, begin, 1, false);
      break;
    case WordPattern::deepseek_v3:
      end = DeepseekScanner(scan).word_end(begin);
      break;
  }
  return static_cast<std::size_t>(end - text.data());
}

}  // namespace sortie::trainer
