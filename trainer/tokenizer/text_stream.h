// TextStream: the text of ids that come one by one, whole characters at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {

/// What feed() and finish() return is, one after the other, what decode() gives for all the ids at
/// once, also where a character is spread over several ids, or where a tokenizer shows its first
/// token without a space. (Bytes of a fallback that are wrong in a run that began well: decode()
/// takes the whole run back, which nobody can who has shown it.)
class TextStream {
 public:
  /// The tokenizer must outlive the stream.
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// The text that is certain by now; empty while a character is incomplete.
  std::string feed(std::int32_t id);
  /// What is left: U+FFFD for a character that never ended.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  /// The last ids that gave text together, which that of the next depends on, then the open ones.
  std::vector<std::int32_t> ids_;
  std::size_t closed_ = 0;  // how many of ids_ are the former
  std::size_t shown_ = 0;   // bytes of the text of ids_
};

}  // namespace sortie::trainer
