// SHA-256 through libcrypto, which picks the CPU's SHA instructions.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace sortie::trainer {

/// Hash of bytes that arrive in pieces.
class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  /// Returns 64 lower-case hex digits and resets the object.
  std::string finish_hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::string_view text);

}  // namespace sortie::trainer
