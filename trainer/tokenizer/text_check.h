// What is text, and what is not: images, archives and programs between the files of a corpus.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sortie::trainer {

/// A text has no NUL byte, and at most 1 % of its bytes are no UTF-8.
enum class TextKind { text, nul_bytes, invalid_utf8 };

TextKind kind_of_text(std::string_view bytes);
/// The same for a user who may have said that all is text.
inline TextKind kind_of_text(std::string_view bytes, bool keep_non_text) {
  return keep_non_text ? TextKind::text : kind_of_text(bytes);
}

/// What was left out because it is no text. Equal for equal inputs.
struct LeftOutText {
  static constexpr std::size_t kMaxExamples = 5;

  std::uint64_t with_nul = 0;           // files or documents
  std::uint64_t invalid_utf8 = 0;       // files or documents
  std::uint64_t bytes = 0;              // of both
  std::vector<std::string> examples{};  // where they are: the first ones

  std::uint64_t count() const { return with_nul + invalid_utf8; }
  /// Nothing for text.
  void add(TextKind kind, std::uint64_t size, const std::string& where);
  void add(const LeftOutText& other);
  /// "3 documents that are no text (1.2 MB): 2 with NUL bytes, 1 not UTF-8 (a.png, b.zip, ...)";
  /// `what` is "document" or "file".
  std::string summary(std::string_view what) const;
};

}  // namespace sortie::trainer
