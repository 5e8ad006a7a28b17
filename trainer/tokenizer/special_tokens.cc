#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {

const SpecialTokens& Tokenizer::special_tokens() const {
  static const SpecialTokens none;
  return none;
}

Result<> encode_with_special_tokens(const Tokenizer& tokenizer, std::string_view text,
                                    std::vector<std::int32_t>& ids) {
  const SpecialTokens& special = tokenizer.special_tokens();
  ids.insert(ids.end(), special.before.begin(), special.before.end());
  SORTIE_TRY(tokenizer.encode(text, ids));
  ids.insert(ids.end(), special.after.begin(), special.after.end());
  return {};
}

}  // namespace sortie::trainer
