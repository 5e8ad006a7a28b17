#include "common/seal/greeting.h"

#include <string>

#include "common/base/check.h"

namespace sortie::seal {

static_assert(kSharedKeyBytes == crypto_generichash_KEYBYTES);
static_assert(RecordCipher::kKeyBytes == crypto_generichash_BYTES);

namespace {

/// Key of the records that `sender` sends.
RecordCipher::Key record_key(std::string_view purpose, std::string_view key, End sender,
                             const Greeting& of_first, const Greeting& of_second) {
  std::string text(purpose);
  text += sender == End::first ? '1' : '2';
  text.append(of_first.begin(), of_first.end());
  text.append(of_second.begin(), of_second.end());
  RecordCipher::Key out{};
  crypto_generichash(out.data(), out.size(), reinterpret_cast<const unsigned char*>(text.data()),
                     text.size(), reinterpret_cast<const unsigned char*>(key.data()), key.size());
  return out;
}

}  // namespace

Greeting make_greeting(CipherKind best) {
  SORTIE_CHECK(sodium_init() >= 0);
  Greeting greeting{};
  randombytes_buf(greeting.data(), greeting.size());
  greeting[0] = static_cast<unsigned char>(best);
  return greeting;
}

void begin_records(RecordCipher& seals, RecordCipher& opens, std::string_view purpose,
                   std::string_view key, End self, const Greeting& mine, const Greeting& theirs) {
  SORTIE_CHECK(key.size() == kSharedKeyBytes);
  const auto aes = static_cast<unsigned char>(CipherKind::aes256_gcm);
  const CipherKind kind =
      mine[0] == aes && theirs[0] == aes ? CipherKind::aes256_gcm : CipherKind::chacha20_poly1305;
  const bool is_first = self == End::first;
  const Greeting& first = is_first ? mine : theirs;
  const Greeting& second = is_first ? theirs : mine;
  const End other = is_first ? End::second : End::first;
  seals.begin(kind, record_key(purpose, key, self, first, second));
  opens.begin(kind, record_key(purpose, key, other, first, second));
}

}  // namespace sortie::seal
