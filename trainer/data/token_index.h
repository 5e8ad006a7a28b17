// TokenIndex: a checked view of the bytes of an .idx file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/result.h"
#include "trainer/data/index_format.h"

namespace sortie::trainer {

/// Lengths, positions and documents of the sequences in a .bin file. Non-owning: the bytes must
/// outlive it.
class TokenIndex {
 public:
  /// Checks everything once: the header, the sizes of the arrays, that the sequences are contiguous
  /// and fill `bin_bytes` exactly, that document bounds start at 0, never decrease and end at the
  /// number of sequences. `name` is the file name in messages (PREFIX, without .idx).
  static Result<TokenIndex> parse(std::span<const std::byte> bytes, std::uint64_t bin_bytes,
                                  std::string_view name);

  TokenType type() const { return type_; }
  std::uint64_t num_sequences() const { return num_sequences_; }
  std::uint64_t num_documents() const { return num_bounds_ - 1; }
  std::uint64_t num_tokens() const { return num_tokens_; }
  std::int32_t sequence_length(std::uint64_t sequence) const {
    return load_unaligned<std::int32_t>(lengths_ + 4 * sequence);
  }
  /// Position of the first token of a document, in tokens. For num_documents(): num_tokens().
  std::uint64_t document_begin(std::uint64_t document) const;
  std::uint64_t document_tokens(std::uint64_t document) const {
    return document_begin(document + 1) - document_begin(document);
  }
  /// The document that contains the token at `position`, which must be below num_tokens().
  std::uint64_t document_of(std::uint64_t position) const;

 private:
  TokenIndex() = default;
  Result<> check_sequences(std::uint64_t bin_bytes, std::string_view name);
  Result<> check_documents(std::string_view name) const;
  std::uint64_t bound(std::uint64_t document) const {
    return load_unaligned<std::uint64_t>(bounds_ + 8 * document);
  }

  TokenType type_ = TokenType::u8;
  std::uint64_t num_sequences_ = 0;
  std::uint64_t num_bounds_ = 0;  // documents + 1
  std::uint64_t num_tokens_ = 0;
  const std::byte* lengths_ = nullptr;
  const std::byte* pointers_ = nullptr;
  const std::byte* bounds_ = nullptr;
};

}  // namespace sortie::trainer
