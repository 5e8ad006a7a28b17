// RecordCipher: seals the records of one direction of a link, in place, one after the other
// (libsodium). AES-256-GCM where the CPUs of both ends have instructions for it, which costs a
// quarter less than ChaCha20-Poly1305, else the latter. The number of the record is the nonce, so
// that none can be repeated, left out or moved; a key is used for one direction of one connection.
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

  /// Of this CPU.
  static CipherKind best();

  /// `kind` must be one that this CPU has.
  void begin(CipherKind kind, const Key& key);
  /// Encrypts `size` bytes; the tag goes behind them.
  void seal(unsigned char* bytes, std::size_t size);
  /// Decrypts `size` bytes that have their tag behind them. False: not the next record of who has
  /// the key; nothing was decrypted.
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
