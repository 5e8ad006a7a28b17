#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "common/base/fnv1a.h"
#include "tests/support/mixed_text.h"
#include "tests/support/temp_dir.h"
#include "trainer/tokenizer/unicode.h"

namespace sortie::test {
namespace {

/// splitmix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t below(std::uint64_t n) {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % n;
  }
  template <class T>
  const T& one_of(const std::vector<T>& values) {
    return values[below(values.size())];
  }

 private:
  std::uint64_t state_;
};

std::size_t count_chars(const std::string& text) {
  std::size_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
  return count;
}

std::string from_hex(const std::string& text) {
  std::string out;
  std::string digits;
  for (const char c : text) {
    if (c != ' ') digits += c;
    if (digits.size() < 2) continue;
    out += static_cast<char>(std::stoi(digits, nullptr, 16));
    digits.clear();
  }
  return out;
}

std::string utf8(std::uint64_t c) {
  std::string out;
  trainer::append_utf8(out, static_cast<char32_t>(c));
  return out;
}

}  // namespace

MixedText::MixedText(const std::string& folder) {
  const auto pieces = nlohmann::json::parse(read_text(folder + "/pieces.json"));
  const auto take = [&](const char* name) { return pieces.at(name).get<Pieces>(); };
  words_ = take("word");
  tails_ = take("tail");
  codes_ = take("code");
  spaces_ = take("space");
  emoji_ = take("emoji");
  numbers_ = take("number");
  marks_ = take("mark");
  added_ = take("added");
  for (const std::string& hex : take("bad")) bad_.push_back(from_hex(hex));
  for (const auto& script : pieces.at("scripts"))
    scripts_.push_back({script[0].get<char32_t>(), script[1].get<std::uint64_t>()});
}

std::string MixedText::make(std::uint64_t seed, std::size_t chars) const {
  Random random(seed);
  std::string out;
  for (std::size_t count = 0; count < chars;) {
    const std::uint64_t kind = random.below(32);
    std::string text;
    if (kind < 12) {
      text = random.below(8) != 0 ? " " : "";
      text += random.one_of(words_);
      if (random.below(6) == 0) text += random.one_of(tails_);
    } else if (kind < 14) {
      text = random.one_of(codes_);
    } else if (kind < 17) {
      for (std::uint64_t n = 1 + random.below(3); n > 0; --n) text += random.one_of(spaces_);
    } else if (kind < 19) {
      text = random.below(2) != 0 ? " " : "";
      text += random.one_of(numbers_);
    } else if (kind < 20) {
      text = random.one_of(emoji_);
    } else if (kind < 26) {
      const Script& script = random.one_of(scripts_);
      for (std::uint64_t n = 1 + random.below(12); n > 0; --n)
        text += utf8(script.first + random.below(script.count));
    } else if (kind < 27) {
      text = random.one_of(words_);
      for (std::uint64_t n = 1 + random.below(4); n > 0; --n) text += random.one_of(marks_);
    } else if (kind < 28) {
      for (std::uint64_t n = 1 + random.below(6); n > 0; --n)
        text += static_cast<char>(33 + random.below(94));
    } else if (kind < 30) {
      text = random.one_of(added_);
    } else if (kind < 31) {
      const std::uint64_t c = random.below(0x110000 - 0x800);
      text = utf8(c < 0xd800 ? c : c + 0x800);
    } else {
      out += random.one_of(bad_);
      ++count;
      continue;
    }
    out += text;
    count += count_chars(text);
  }
  return out;
}

std::string every_char(char32_t first) {
  std::string text;
  for (char32_t code = first; code < first + 4096; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    const std::string c = utf8(code);
    text += c + "a" + c + " " + c + c + "1" + c + "'" + c + "\n" + c + "\t" + c + "e" + c +
            "\xcc\x81 ." + c + "\n";
  }
  return text;
}

std::string fnv(std::string_view bytes) {
  return fmt::format("{:016x}", fnv1a_64(bytes));
}

std::string fnv(std::span<const std::int32_t> ids) {
  const auto bytes = std::as_bytes(ids);
  return fnv(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace sortie::test
