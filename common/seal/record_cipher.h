// RecordCipher: encrypts and authenticates the records of one direction of a link, in place
// (libsodium). Uses AES-256-GCM if the CPUs of both ends have instructions for it, which costs a
// quarter less than ChaCha20-Poly1305; else the latter. The number of the record is the nonce, so
// that no record can be repeated, omitted or reordered. A key is for one direction of one
// connection.
#pragma once

#include <sodium.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace sortie::seal {

enum class CipherKind : std::uint8_t { chacha20_poly1305 = 0, aes256_gcm = 1 };

class RecordCipher {
 public:
  static constexpr std::size_t kKeyBytes = 32;
  static constexpr std::size_t kTagBytes = 16;
  using Key = std::array<unsigned char, kKeyBytes>;

  /// The best cipher that this CPU supports.
  static CipherKind best();

  /// Starts a sequence of records. This CPU must support `kind`.
  void begin(CipherKind kind, const Key& key);
  /// Encrypts `size` bytes in place; writes the tag (kTagBytes) after them.
  void seal(unsigned char* bytes, std::size_t size);
  /// Decrypts `size` bytes in place; the tag follows them. Returns false, and decrypts nothing, if
  /// they are not the next record of the peer with this key.
  bool open(unsigned char* bytes, std::size_t size);

 private:
  using Nonce = std::array<unsigned char, crypto_aead_aes256gcm_NPUBBYTES>;
  Nonce next_nonce();

  CipherKind kind_ = CipherKind::chacha20_poly1305;
  Key key_{};
  crypto_aead_aes256gcm_state aes_{};
  std::uint64_t records_ = 0;
};

}  // namespace sortie::seal
