// SHA-256 of bytes in memory.
#pragma once

#include <openssl/evp.h>

#include <string>
#include <string_view>

#include "common/base/check.h"

namespace sortie::launcher {

/// Returns the 32 bytes of the digest; hex() and base64_encode() convert them to text.
inline std::string sha256(std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  SORTIE_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest, &length, EVP_sha256(), nullptr) == 1);
  return {reinterpret_cast<const char*>(digest), length};
}

}  // namespace sortie::launcher
