#include "trainer/tokenizer/text_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer {

TextKind kind_of_text(std::string_view bytes) {
  if (bytes.find('\0') != bytes.npos) return TextKind::nul_bytes;
  const std::size_t most = bytes.size() / 100;
  for (std::size_t invalid = 0;; ++invalid) {
    bytes.remove_prefix(valid_utf8_prefix(bytes));
    if (bytes.empty()) return TextKind::text;
    if (invalid >= most) return TextKind::invalid_utf8;
    bytes.remove_prefix(1);
  }
}

void LeftOutText::add(TextKind kind, std::uint64_t size, const std::string& where) {
  if (kind == TextKind::text) return;
  ++(kind == TextKind::nul_bytes ? with_nul : invalid_utf8);
  bytes += size;
  if (examples.size() < kMaxExamples) examples.push_back(where);
}

void LeftOutText::add(const LeftOutText& other) {
  with_nul += other.with_nul;
  invalid_utf8 += other.invalid_utf8;
  bytes += other.bytes;
  for (const std::string& example : other.examples)
    if (examples.size() < kMaxExamples) examples.push_back(example);
}

std::string LeftOutText::summary(std::string_view what) const {
  return fmt::format("{} {}{} that {} no text ({:.1f} MB): {} with NUL bytes, {} not UTF-8 ({}{})",
                     count(), what, count() == 1 ? "" : "s", count() == 1 ? "is" : "are",
                     static_cast<double>(bytes) / 1e6, with_nul, invalid_utf8,
                     fmt::join(examples, ", "), count() > examples.size() ? ", ..." : "");
}

Error no_text(const LeftOutText& left_out) {
  return {ErrorCode::data, left_out.count() == 0 ? "the files are empty"
                                                 : fmt::format("no text in the files; left out: {}",
                                                               left_out.summary("file"))};
}

}  // namespace sortie::trainer
