// Fuzzes hf_tokenizer_from_text() with a tokenizer.json. An error names the file. For any bytes, an
// accepted tokenizer returns ids below its vocabulary size and decodes to valid UTF-8.
#include <cstdint>
#include <string_view>

#include "common/base/check.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/unicode.h"

namespace {

using namespace sortie::trainer;

void check_text(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  SORTIE_CHECK(encode_with_special_tokens(tokenizer, text, ids).has_value());
  for (const std::int32_t id : ids) SORTIE_CHECK(id >= 0 && id < tokenizer.vocab_size());
  const std::string decoded = tokenizer.decode(ids);
  SORTIE_CHECK(valid_utf8_prefix(decoded) == decoded.size());
  const std::size_t cut = tokenizer.find_cut(text, text.size() / 2);
  if (cut == std::string_view::npos) return;
  std::vector<std::int32_t> whole, parts;
  SORTIE_CHECK(tokenizer.encode(text, whole).has_value());
  SORTIE_CHECK(tokenizer.encode(text.substr(0, cut), parts).has_value());
  SORTIE_CHECK(tokenizer.encode(text.substr(cut), parts).has_value());
  SORTIE_CHECK(whole == parts);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = hf_tokenizer_from_text(text, "fuzz.json");
  if (!tokenizer) {
    SORTIE_CHECK(tokenizer.error().message.starts_with("fuzz.json: "), "{}",
                 tokenizer.error().message);
    return 0;
  }
  check_text(**tokenizer, "");
  check_text(**tokenizer,
             "A caf\xc3\xa9's 12345 \xe4\xb8\xad\xe6\x96\x87\r\n\n  \xf0\x9f\x98\x80 "
             "x<s>\xe2\x96\x81\xff\xe2\x82");
  check_text(**tokenizer, text.substr(0, 500));
  const std::int32_t odd[] = {-1, 0, 1, 1 << 30};
  const std::string decoded = (*tokenizer)->decode(odd);
  SORTIE_CHECK(valid_utf8_prefix(decoded) == decoded.size());
  return 0;
}
