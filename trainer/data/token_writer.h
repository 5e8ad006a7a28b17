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

/// Appends the tokens to `out` as they are in a .bin; every id must fit the type.
void append_tokens(TokenType type, std::span<const std::int32_t> tokens,
                   std::vector<std::byte>& out);

/// What finish() has put in place.
struct TokenFileSummary {
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
  std::string bin_sha256;
  std::string idx_sha256;
};

/// Use: create, (append..., end_document)..., finish. Without finish nothing is left behind.
class TokenFileWriter {
 public:
  /// An existing PREFIX is refused unless `overwrite`.
  static Result<TokenFileWriter> create(const std::string& prefix, TokenType type, bool overwrite);

  /// Adds tokens to the open document; every id must fit the type.
  Result<> append(std::span<const std::int32_t> tokens);
  /// Adds tokens that are as in the .bin already: whole ones, of the file's type.
  Result<> append_raw(std::span<const std::byte> tokens);
  Result<> end_document();
  /// fsyncs both files, renames the .bin, then the .idx, and fsyncs the folder.
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
  std::uint64_t open_tokens_ = 0;  // of the sequence being written
  std::vector<std::int32_t> lengths_;
  std::vector<std::uint64_t> bounds_{0};
  std::vector<std::byte> narrow_;  // scratch
};

}  // namespace sortie::trainer
