#include <cstddef>

#include "trainer/tokenizer/byte_letters.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer {
namespace {

constexpr std::int32_t kEndOfDocument = 256;

class ByteTokenizer final : public Tokenizer {
 public:
  Result<> encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    const std::size_t start = ids.size();
    ids.resize(start + text.size());
    for (std::size_t i = 0; i < text.size(); ++i)
      ids[start + i] = static_cast<unsigned char>(text[i]);
    return {};
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const std::int32_t id : ids) {
      if (id >= 0 && id < kEndOfDocument)
        text += static_cast<char>(id);
      else if (id != kEndOfDocument)
        text += "\xef\xbf\xbd";
    }
    return text;
  }

  std::int64_t vocab_size() const override { return kEndOfDocument + 1; }
  std::optional<std::int32_t> eod_id() const override { return kEndOfDocument; }
  std::string name() const override { return "byte"; }
  std::string model_hash() const override { return {}; }
  /// The spelling of byte-level BPE, so that the tokenizer.json that is exported for this tokenizer
  /// has the same vocabulary.
  std::string token_text(std::int32_t id) const override {
    std::string text;
    if (id == kEndOfDocument) return "<|endoftext|>";
    append_utf8(text, hf::char_of_byte(static_cast<std::uint8_t>(id)));
    return text;
  }
  std::size_t find_cut(std::string_view text, std::size_t from) const override {
    return from < text.size() ? from : std::string_view::npos;
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

}  // namespace sortie::trainer
