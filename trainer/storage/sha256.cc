#include "trainer/storage/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "common/base/check.h"

namespace sortie::trainer {

struct Sha256::Context {
  Context() : evp(EVP_MD_CTX_new()) { reset(); }
  ~Context() { EVP_MD_CTX_free(evp); }
  void reset() {
    SORTIE_CHECK(evp != nullptr && EVP_DigestInit_ex(evp, EVP_sha256(), nullptr) == 1,
                 "libcrypto has no SHA-256");
  }
  EVP_MD_CTX* evp;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
  SORTIE_CHECK(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1);
}

void Sha256::update(std::string_view text) {
  update(std::as_bytes(std::span(text.data(), text.size())));
}

std::string Sha256::finish_hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  SORTIE_CHECK(EVP_DigestFinal_ex(context_->evp, digest.data(), &length) == 1 && length == 32);
  context_->reset();
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < length; ++i) {
    text += kHex[digest[i] >> 4];
    text += kHex[digest[i] & 15];
  }
  return text;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish_hex();
}

std::string sha256_hex(std::string_view text) {
  return sha256_hex(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace sortie::trainer
