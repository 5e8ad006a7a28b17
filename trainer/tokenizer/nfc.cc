#include "trainer/tokenizer/nfc.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "trainer/tokenizer/unicode.h"
#include "trainer/tokenizer/unicode_tables.h"

namespace sortie::trainer {
namespace {

// Hangul syllables compose by arithmetic: leading consonant, vowel, optional trailing consonant.
constexpr char32_t kSyllables = 0xac00;
constexpr char32_t kLeads = 0x1100;
constexpr char32_t kVowels = 0x1161;
constexpr char32_t kTrails = 0x11a7;  // one before the first: 0 is "none"
constexpr char32_t kNumLeads = 19;
constexpr char32_t kNumVowels = 21;
constexpr char32_t kNumTrails = 28;
constexpr char32_t kNumSyllables = kNumLeads * kNumVowels * kNumTrails;

class Normalizer {
 public:
  static const Normalizer& get() {
    static const Normalizer normalizer;
    return normalizer;
  }

  /// Appends the NFC of the code points. Characters before them must not affect the result.
  void normalize(std::vector<char32_t>& chars, std::string& out) const {
    decompose(chars);
    compose(chars);
    for (const char32_t c : chars) append_utf8(out, c);
  }

 private:
  Normalizer() {
    const auto values = decomposition_values();
    for (std::size_t i = 0; i < values.size(); i += 1 + (values[i] & 255))
      decompositions_.emplace(values[i] >> 8, i);
    const auto triples = composition_values();
    for (std::size_t i = 0; i < triples.size(); i += 3)
      compositions_.emplace(std::uint64_t{triples[i]} << 32 | triples[i + 1], triples[i + 2]);
  }

  static std::uint8_t combining_class(char32_t c) {
    const auto ranges = combining_ranges();
    const auto next = std::upper_bound(ranges.begin(), ranges.end(), c << 8 | 255);
    return next == ranges.begin() ? std::uint8_t{0} : static_cast<std::uint8_t>(*(next - 1));
  }

  void decompose(std::vector<char32_t>& chars) const {
    std::vector<char32_t> parts;
    for (const char32_t c : chars) {
      if (c >= kSyllables && c < kSyllables + kNumSyllables) {
        const char32_t index = c - kSyllables;
        parts.push_back(kLeads + index / (kNumVowels * kNumTrails));
        parts.push_back(kVowels + index / kNumTrails % kNumVowels);
        if (index % kNumTrails != 0) parts.push_back(kTrails + index % kNumTrails);
      } else if (const auto found = decompositions_.find(c); found != decompositions_.end()) {
        const auto values = decomposition_values();
        const std::uint32_t count = values[found->second] & 255;
        for (std::uint32_t i = 1; i <= count; ++i) parts.push_back(values[found->second + i]);
      } else {
        parts.push_back(c);
      }
    }
    chars = std::move(parts);
    // Sorts the marks after each base by combining class.
    const auto is_mark = [](char32_t c) { return combining_class(c) != 0; };
    for (auto at = chars.begin(); at != chars.end();) {
      const auto first = std::find_if(at, chars.end(), is_mark);
      at = std::find_if_not(first, chars.end(), is_mark);
      std::stable_sort(first, at, [](char32_t a, char32_t b) {
        return combining_class(a) < combining_class(b);
      });
    }
  }

  /// Returns what two code points compose to, or 0.
  char32_t composed(char32_t first, char32_t second) const {
    if (first >= kLeads && first < kLeads + kNumLeads && second >= kVowels &&
        second < kVowels + kNumVowels)
      return kSyllables + ((first - kLeads) * kNumVowels + (second - kVowels)) * kNumTrails;
    if (first >= kSyllables && first < kSyllables + kNumSyllables &&
        (first - kSyllables) % kNumTrails == 0 && second > kTrails && second < kTrails + kNumTrails)
      return first + (second - kTrails);
    const auto found = compositions_.find(std::uint64_t{first} << 32 | second);
    return found == compositions_.end() ? 0 : static_cast<char32_t>(found->second);
  }

  void compose(std::vector<char32_t>& chars) const {
    constexpr std::size_t kNone = static_cast<std::size_t>(-1);
    std::size_t base = kNone;  // index of the last starter in the output
    std::size_t size = 0;
    int last_class = -1;  // of the last character kept after the base
    for (const char32_t c : chars) {
      const int own_class = combining_class(c);
      // Blocked if a character of the same or a higher class, or another starter, is in between.
      if (base != kNone && last_class < own_class) {
        if (const char32_t whole = composed(chars[base], c); whole != 0) {
          chars[base] = whole;
          continue;
        }
      }
      if (own_class == 0) {
        base = size;
        last_class = -1;
      } else {
        last_class = own_class;
      }
      chars[size++] = c;
    }
    chars.resize(size);
  }

  std::unordered_map<char32_t, std::size_t> decompositions_;  // index in decomposition_values()
  std::unordered_map<std::uint64_t, std::uint32_t> compositions_;
};

}  // namespace

std::string_view normalize_nfc(std::string_view text, std::string& buffer) {
  const UnicodeFlags& flags = UnicodeFlags::get();
  const char* const end = text.data() + text.size();
  const char* const begin = text.data();
  // Finds runs of code points that may change, each with the inert one before it, which may be a
  // base.
  const char* copied = begin;    // the text before it is in `buffer`
  const char* previous = begin;  // the last code point before `at`
  bool changed = false;
  std::vector<char32_t> chars;
  for (const char* at = begin; at < end;) {
    const char* const here = at;
    if (static_cast<unsigned char>(*at) < 0x80) {
      ++at;
    } else if (const char32_t c = take_char(at); !flags.is_inert(c)) {
      if (!changed) buffer.clear();
      changed = true;
      buffer.append(copied, previous);
      chars.clear();
      for (const char* p = previous; p < at;) chars.push_back(take_char(p));
      while (at < end) {
        const char* next = at;
        const char32_t following = take_char(next);
        if (flags.is_inert(following)) break;
        chars.push_back(following);
        at = next;
      }
      Normalizer::get().normalize(chars, buffer);
      copied = at;
      previous = at;
      continue;
    }
    previous = here;
  }
  if (!changed) return text;
  buffer.append(copied, end);
  return buffer;
}

}  // namespace sortie::trainer
