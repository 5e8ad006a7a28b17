#include "trainer/storage/sha256.h"
#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {

std::string vocabulary_hash(const Tokenizer& tokenizer) {
  Sha256 hash;
  for (std::int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    hash.update(tokenizer.token_text(static_cast<std::int32_t>(id)));
    hash.update(std::string_view("\0", 1));  // no token holds a NUL
  }
  return hash.finish_hex();
}

}  // namespace sortie::trainer
