#include "trainer/tokenizer/unicode.h"

#include <cstring>
#include <map>

#include "trainer/tokenizer/unicode_tables.h"

namespace sortie::trainer {

UnicodeFlags::UnicodeFlags() {
  std::map<std::array<std::uint8_t, 256>, std::uint16_t> known;
  const auto ranges = flag_ranges();
  std::size_t next = 0;
  std::uint8_t flags = 0;
  for (std::size_t block = 0; block < kBlocks; ++block) {
    std::array<std::uint8_t, 256> content;
    for (std::size_t i = 0; i < content.size(); ++i) {
      if (next < ranges.size() && ranges[next] >> 8 == block * 256 + i)
        flags = static_cast<std::uint8_t>(ranges[next++]);
      content[i] = flags;
    }
    const auto [at, is_new] = known.emplace(content, static_cast<std::uint16_t>(known.size()));
    if (is_new) blocks_.insert(blocks_.end(), content.begin(), content.end());
    block_of_[block] = at->second;
  }
}

const UnicodeFlags& UnicodeFlags::get() {
  static const UnicodeFlags flags;
  return flags;
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xc0 | c >> 6);
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3f));
  } else {
    put(0xf0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3f));
    put(0x80 | (c >> 6 & 0x3f));
  }
  put(0x80 | (c & 0x3f));
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t word = 0;
    while (at + sizeof word <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & 0x8080808080808080u) != 0) break;
      at += sizeof word;
    }
    if (at == text.size()) break;
    const Utf8Sequence sequence = read_utf8(text.substr(at, 4));
    if (!sequence.valid) return at;
    at += sequence.bytes;
  }
  return at;
}

std::string_view repair_utf8(std::string_view text, std::string& buffer) {
  std::size_t valid = valid_utf8_prefix(text);
  if (valid == text.size()) return text;
  buffer.clear();
  for (;;) {
    buffer += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) return buffer;
    buffer += kReplacementChar;
    text.remove_prefix(read_utf8(text.substr(0, 4)).bytes);
    valid = valid_utf8_prefix(text);
  }
}

std::size_t incomplete_utf8_suffix(std::string_view text) {
  for (std::size_t bytes = 1; bytes <= 3 && bytes <= text.size(); ++bytes) {
    const std::string_view tail = text.substr(text.size() - bytes);
    const auto lead = static_cast<unsigned char>(tail[0]);
    if ((lead & 0xc0) == 0x80) continue;
    const Utf8Sequence sequence = read_utf8(tail);
    return sequence.cut && sequence.bytes == bytes ? bytes : 0;
  }
  return 0;
}

std::string_view utf8_prefix(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  text = text.substr(0, most);
  text.remove_suffix(incomplete_utf8_suffix(text));
  return text;
}

}  // namespace sortie::trainer
