// TextStream: converts ids to text one by one, and returns only whole characters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {

/// The concatenated results of feed() and finish() equal decode() of all ids at once, even if a
/// character spans several ids or the tokenizer omits the space before its first token. There is
/// one exception, invalid bytes of a byte fallback in a run that begins validly: decode() replaces
/// the whole run, but a stream has already returned its beginning.
class TextStream {
 public:
  /// The tokenizer must outlive the stream.
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// Adds an id and returns the text that is now certain. Empty while a character is incomplete.
  std::string feed(std::int32_t id);
  /// Returns the remaining text: U+FFFD for a character that was never completed.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  /// The ids of the last returned text, which are the context of the next, then the open ids.
  std::vector<std::int32_t> ids_;
  std::size_t closed_ = 0;  // number of the former in ids_
  std::size_t shown_ = 0;   // bytes of the text of ids_ that were returned
};

}  // namespace sortie::trainer
