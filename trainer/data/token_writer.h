// TokenFileWriter: writes PREFIX.bin and PREFIX.idx so that they appear complete or not at all.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/data/index_format.h"
#include "trainer/data/output_file.h"

namespace sortie::trainer {

/// Appends the tokens to `out` in the byte format of a .bin. Every id must fit the type.
void append_tokens(TokenType type, std::span<const std::int32_t> tokens,
                   std::vector<std::byte>& out);

/// Describes the files that finish() published.
struct TokenFileSummary {
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
  std::int64_t max_id = -1;  // largest token; -1 = no tokens
  std::string bin_sha256;
  std::string idx_sha256;
};

/// Usage: create, (append..., end_document)..., finish. Without finish(), no file remains.
class TokenFileWriter {
 public:
  /// ErrorCode::usage if PREFIX.bin or PREFIX.idx exists, unless `overwrite`.
  static Result<TokenFileWriter> create(const std::string& prefix, TokenType type, bool overwrite);

  /// Appends tokens to the current document. Every id must fit the type.
  Result<> append(std::span<const std::int32_t> tokens);
  /// Appends tokens that are already in the byte format of the .bin: whole tokens of the file's
  /// type.
  Result<> append_raw(std::span<const std::byte> tokens);
  Result<> end_document();
  /// Fsyncs both files, removes an old .idx, renames the new .bin, then the new .idx, and fsyncs
  /// the folder.
  Result<TokenFileSummary> finish();

  std::uint64_t tokens() const { return tokens_; }
  std::uint64_t documents() const { return bounds_.size() - 1; }

 private:
  TokenFileWriter(std::string prefix, TokenType type, OutputFile bin, OutputFile idx);
  void end_sequence();
  Result<> write_index();

  std::string prefix_;
  TokenType type_;
  OutputFile bin_;
  OutputFile idx_;
  std::uint64_t tokens_ = 0;
  std::uint64_t open_tokens_ = 0;  // of the current sequence
  std::int64_t max_id_ = -1;
  std::vector<std::int32_t> lengths_;
  std::vector<std::uint64_t> bounds_{0};
  std::vector<std::byte> narrow_;  // scratch
};

}  // namespace sortie::trainer
