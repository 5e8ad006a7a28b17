// Distinguishes text from images, archives and programs among the files of a corpus.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::trainer {

/// A text has no NUL byte, and at most 1 % of its bytes are invalid UTF-8.
enum class TextKind { text, nul_bytes, invalid_utf8 };

TextKind kind_of_text(std::string_view bytes);
/// As above, but everything is text if `keep_non_text`.
inline TextKind kind_of_text(std::string_view bytes, bool keep_non_text) {
  return keep_non_text ? TextKind::text : kind_of_text(bytes);
}

/// Counts what was left out because it is not text. Equal inputs give equal values.
struct LeftOutText {
  static constexpr std::size_t kMaxExamples = 5;

  std::uint64_t with_nul = 0;           // files or documents
  std::uint64_t invalid_utf8 = 0;       // files or documents
  std::uint64_t bytes = 0;              // of both kinds
  std::vector<std::string> examples{};  // names of the first ones

  std::uint64_t count() const { return with_nul + invalid_utf8; }
  /// No-op for text.
  void add(TextKind kind, std::uint64_t size, const std::string& where);
  void add(const LeftOutText& other);
  /// "3 documents that are no text (1.2 MB): 2 with NUL bytes, 1 not UTF-8 (a.png, b.zip, ...)";
  /// `what` is "document" or "file".
  std::string summary(std::string_view what) const;
};

/// ErrorCode::data: a tokenizer can not be trained, because nothing in its files is text.
Error no_text(const LeftOutText& left_out);

}  // namespace sortie::trainer
