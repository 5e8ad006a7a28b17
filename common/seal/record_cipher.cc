#include "common/seal/record_cipher.h"

#include "common/base/check.h"

namespace sortie::seal {

static_assert(RecordCipher::kKeyBytes == crypto_aead_aes256gcm_KEYBYTES);
static_assert(RecordCipher::kKeyBytes == crypto_aead_chacha20poly1305_ietf_KEYBYTES);
static_assert(RecordCipher::kTagBytes == crypto_aead_aes256gcm_ABYTES);
static_assert(RecordCipher::kTagBytes == crypto_aead_chacha20poly1305_ietf_ABYTES);
static_assert(crypto_aead_aes256gcm_NPUBBYTES == crypto_aead_chacha20poly1305_ietf_NPUBBYTES);

CipherKind RecordCipher::best() {
  SORTIE_CHECK(sodium_init() >= 0);
  return crypto_aead_aes256gcm_is_available() == 1 ? CipherKind::aes256_gcm
                                                   : CipherKind::chacha20_poly1305;
}

void RecordCipher::begin(CipherKind kind, const Key& key) {
  kind_ = kind;
  key_ = key;
  records_ = 0;
  if (kind != CipherKind::aes256_gcm) return;
  SORTIE_CHECK(best() == CipherKind::aes256_gcm);
  crypto_aead_aes256gcm_beforenm(&aes_, key_.data());
}

RecordCipher::Nonce RecordCipher::next_nonce() {
  Nonce nonce{};
  for (std::size_t i = 0; i < 8; ++i) nonce[i] = static_cast<unsigned char>(records_ >> (8 * i));
  ++records_;
  return nonce;
}

void RecordCipher::seal(unsigned char* bytes, std::size_t size) {
  const Nonce nonce = next_nonce();
  if (kind_ == CipherKind::aes256_gcm)
    crypto_aead_aes256gcm_encrypt_detached_afternm(bytes, bytes + size, nullptr, bytes, size,
                                                   nullptr, 0, nullptr, nonce.data(), &aes_);
  else
    crypto_aead_chacha20poly1305_ietf_encrypt_detached(
        bytes, bytes + size, nullptr, bytes, size, nullptr, 0, nullptr, nonce.data(), key_.data());
}

bool RecordCipher::open(unsigned char* bytes, std::size_t size) {
  const Nonce nonce = next_nonce();
  const int failed =
      kind_ == CipherKind::aes256_gcm
          ? crypto_aead_aes256gcm_decrypt_detached_afternm(
                bytes, nullptr, bytes, size, bytes + size, nullptr, 0, nonce.data(), &aes_)
          : crypto_aead_chacha20poly1305_ietf_decrypt_detached(
                bytes, nullptr, bytes, size, bytes + size, nullptr, 0, nonce.data(), key_.data());
  return failed == 0;
}

}  // namespace sortie::seal
