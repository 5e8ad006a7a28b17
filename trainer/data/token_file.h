// TokenFile: PREFIX.bin and PREFIX.idx, memory-mapped and checked. The format is Megatron's, or
// Scaling's if the .idx lacks Megatron's magic and a PREFIX.meta.json exists.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/data/token_index.h"
#include "trainer/storage/mapped_file.h"

namespace sortie::trainer {

/// Immutable and thread-safe.
class TokenFile {
 public:
  /// Fails with ErrorCode::data, naming the file and the numbers that disagree.
  static Result<TokenFile> open(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  const TokenIndex& index() const { return index_; }
  std::uint64_t num_tokens() const { return index_.num_tokens(); }
  std::uint64_t num_documents() const { return index_.num_documents(); }

  /// Copies the tokens [position, position + out.size()), which must be within the file.
  /// ErrorCode::data if an id is outside [0, vocab_size); the message names file, document, token
  /// and id.
  Result<> read(std::uint64_t position, std::int64_t vocab_size, std::span<std::int32_t> out) const;

  /// 32 hex digits: a hash of the whole .idx, the size of the .bin and 64 of its blocks. Equal on
  /// all ranks that see the same data, and cheap for any size.
  std::string fingerprint() const;

  std::span<const std::byte> bin_bytes() const { return bin_.bytes(); }
  std::span<const std::byte> idx_bytes() const { return idx_.bytes(); }
  void expect_sequential() const { bin_.expect_sequential(); }

 private:
  TokenFile(std::string prefix, MappedFile idx, MappedFile bin, std::vector<std::byte> converted,
            TokenIndex index);
  template <class T>
  Result<> read_as(std::uint64_t position, std::int64_t vocab_size,
                   std::span<std::int32_t> out) const;

  std::string prefix_;
  MappedFile idx_;
  MappedFile bin_;
  std::vector<std::byte> converted_;  // Scaling's format only: the converted index
  TokenIndex index_;
};

}  // namespace sortie::trainer
