// What is in a token file: counts, lengths, ids, and whether it is what its manifest says.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/data/build_manifest.h"
#include "trainer/data/token_file.h"

namespace sortie::trainer {

struct Inspection {
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
  TokenType type = TokenType::u8;
  std::uint64_t bin_bytes = 0;
  std::uint64_t idx_bytes = 0;
  std::int64_t min_id = 0;  // of a file with tokens
  std::int64_t max_id = 0;
  std::uint64_t shortest = 0;
  std::uint64_t longest = 0;
  /// Documents by length in tokens: [0] none, [k] from 2^(k-1) to 2^k - 1.
  std::array<std::uint64_t, 65> lengths{};
  std::vector<std::int32_t> first_tokens;
  std::string fingerprint;
  std::optional<BuildManifest> manifest;  // its hashes and counts were compared and agree
};

/// Reads all of the file. A difference from the manifest beside it is an error.
Result<Inspection> inspect_token_file(const std::string& prefix, std::size_t num_first_tokens);

}  // namespace sortie::trainer
