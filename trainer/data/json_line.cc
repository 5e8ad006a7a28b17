#include "trainer/data/json_line.h"

#include <fmt/core.h>

#include <cstdint>
#include <cstring>
#include <optional>

#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer {
namespace {

/// Scans JSON text. Skips unneeded values by matching brackets and quotes only.
class Walker {
 public:
  explicit Walker(std::string_view text) : text_(text) {}

  std::size_t at() const { return at_; }
  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }

  std::unexpected<Error> broken(std::string_view what) const {
    return fail(ErrorCode::data,
                fmt::format("not a JSON object: {} at byte {} of the line", what, at_));
  }

  void skip_space() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '\n') ++at_;
  }

  bool take(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  struct String {
    std::string_view raw;  // between the quotes
    bool has_escapes = false;
  };

  Result<String> take_string() {
    if (!take('"')) return broken("a string should be");
    const std::size_t begin = at_;
    bool has_escapes = false;
    for (;;) {
      skip_plain();
      if (at_end()) break;
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c == '"') return String{text_.substr(begin, at_++ - begin), has_escapes};
      if (c < 0x20) return broken("a control character inside of a string");
      has_escapes = has_escapes || c == '\\';
      at_ += c == '\\' ? 2 : 1;
    }
    at_ = text_.size();
    return broken("the end inside of a string");
  }

  /// Skips ordinary characters of a string, eight at a time. Stops at or shortly before a quote, a
  /// backslash or a control character.
  void skip_plain() {
    constexpr std::uint64_t kOnes = 0x0101010101010101u;
    constexpr std::uint64_t kHigh = 0x8080808080808080u;
    const auto has_zero = [](std::uint64_t v) { return (v - kOnes) & ~v & kHigh; };
    for (std::uint64_t word; at_ + sizeof word <= text_.size(); at_ += sizeof word) {
      std::memcpy(&word, text_.data() + at_, sizeof word);
      const std::uint64_t control = (word - kOnes * 0x20) & ~word & kHigh;
      if ((has_zero(word ^ kOnes * '"') | has_zero(word ^ kOnes * '\\') | control) != 0) return;
    }
  }

  Result<> skip_value() {
    std::string open;  // expected closing brackets
    do {
      skip_space();
      const char c = peek();
      if (c == '"') {
        SORTIE_TRY(take_string());
      } else if (c == '{' || c == '[') {
        open += c == '{' ? '}' : ']';
        ++at_;
      } else if (!open.empty() && c == open.back()) {
        open.pop_back();
        ++at_;
      } else if (!open.empty() && (c == ',' || c == ':')) {
        ++at_;
      } else {
        const std::size_t begin = at_;
        at_ = std::min(text_.find_first_not_of("+-.0123456789Eaeflnrstu", at_), text_.size());
        if (at_ == begin) return broken("no value");
      }
      skip_space();
    } while (!open.empty());
    return {};
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

std::optional<char32_t> hex4(std::string_view text, std::size_t at) {
  if (at + 4 > text.size()) return std::nullopt;
  char32_t value = 0;
  for (const char c : text.substr(at, 4)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = value << 4 | static_cast<char32_t>(digit);
  }
  return value;
}

/// Returns the character of the \uXXXX whose digits begin at `at`. Moves `at` past them, and past
/// the second half of a surrogate pair.
std::optional<char32_t> take_unicode_escape(std::string_view raw, std::size_t& at) {
  const auto first = hex4(raw, at);
  if (!first) return std::nullopt;
  at += 4;
  if (*first < 0xd800 || *first > 0xdfff) return first;
  if (*first <= 0xdbff && raw.substr(at).starts_with("\\u")) {
    const auto second = hex4(raw, at + 2);
    if (second && *second >= 0xdc00 && *second <= 0xdfff) {
      at += 6;
      return 0x10000 + ((*first - 0xd800) << 10) + (*second - 0xdc00);
    }
  }
  return 0xfffd;
}

Result<> unescape(std::string_view raw, std::string& out) {
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
  out.clear();
  for (std::size_t at = 0; at < raw.size();) {
    const std::size_t escape = std::min(raw.find('\\', at), raw.size());
    out.append(raw, at, escape - at);
    if (escape == raw.size()) break;
    const char name = raw[escape + 1];  // a string does not end with a lone backslash
    at = escape + 2;
    if (const std::size_t known = kNames.find(name); known != std::string_view::npos) {
      out += kValues[known];
      continue;
    }
    const auto c = name == 'u' ? take_unicode_escape(raw, at) : std::nullopt;
    if (!c)
      return fail(ErrorCode::data, fmt::format("not a JSON object: unknown escape \\{}", name));
    append_utf8(out, *c);
  }
  return {};
}

}  // namespace

Result<std::string_view> json_line_string(std::string_view line, std::string_view key,
                                          std::string& buffer) {
  Walker walker(line);
  std::optional<Walker::String> found;  // the last occurrence
  bool other = false;                   // the last occurrence is not a string
  walker.skip_space();
  if (!walker.take('{')) return walker.broken("no {");
  walker.skip_space();
  if (!walker.take('}')) {
    do {
      walker.skip_space();
      SORTIE_ASSIGN_OR_RETURN(const Walker::String name, walker.take_string());
      walker.skip_space();
      if (!walker.take(':')) return walker.broken("no : after a key");
      walker.skip_space();
      bool wanted = name.raw == key;
      if (name.has_escapes) {
        SORTIE_TRY(unescape(name.raw, buffer));
        wanted = buffer == key;
      }
      if (wanted) {
        found.reset();
        other = walker.peek() != '"';
      }
      if (!wanted || other) {
        SORTIE_TRY(walker.skip_value());
      } else {
        SORTIE_ASSIGN_OR_RETURN(found, walker.take_string());
        walker.skip_space();
      }
    } while (walker.take(','));
    if (!walker.take('}')) return walker.broken("no , or }");
  }
  walker.skip_space();
  if (!walker.at_end()) return walker.broken("something after the object");
  if (!found && other)
    return fail(ErrorCode::data,
                fmt::format("\"{}\" is not a string; choose another --json-key, or "
                            "remove the line",
                            key));
  if (!found)
    return fail(ErrorCode::data, fmt::format("no \"{}\"; choose another --json-key", key));
  if (!found->has_escapes) return found->raw;
  SORTIE_TRY(unescape(found->raw, buffer));
  return buffer;
}

}  // namespace sortie::trainer
