#include "trainer/tokenizer/text_stream.h"

#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer {

std::string TextStream::feed(std::int32_t id) {
  constexpr std::size_t kMostOpen = 64;  // limit for a text of nothing but U+FFFD
  ids_.push_back(id);
  const std::string whole = tokenizer_.decode(ids_);
  // U+FFFD at the end may be the beginning of a character.
  std::size_t certain = whole.size();
  if (ids_.size() - closed_ < kMostOpen)
    while (std::string_view(whole).substr(0, certain).ends_with(kReplacementChar))
      certain -= kReplacementChar.size();
  if (certain <= shown_) return {};
  std::string text = whole.substr(shown_, certain - shown_);
  shown_ = certain;
  if (certain == whole.size()) {
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(closed_));
    closed_ = ids_.size();
    shown_ = tokenizer_.decode(ids_).size();
  }
  return text;
}

std::string TextStream::finish() {
  const std::string whole = tokenizer_.decode(ids_);
  std::string text = whole.size() > shown_ ? whole.substr(shown_) : std::string();
  ids_.clear();
  closed_ = 0;
  shown_ = 0;
  return text;
}

}  // namespace sortie::trainer
