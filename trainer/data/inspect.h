// Inspects a token file: counts, lengths, ids, and whether it agrees with its manifest.
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
  std::int64_t min_id = 0;  // min_id and max_id: only if tokens > 0
  std::int64_t max_id = 0;
  std::uint64_t shortest = 0;
  std::uint64_t longest = 0;
  /// Documents by length in tokens: [0] counts empty ones, [k] those of 2^(k-1) to 2^k - 1.
  std::array<std::uint64_t, 65> lengths{};
  std::vector<std::int32_t> first_tokens;
  std::string fingerprint;
  std::optional<BuildManifest> manifest;  // its hashes and counts agree with the files
};

/// Reads the whole file. ErrorCode::data if it differs from its manifest.
Result<Inspection> inspect_token_file(const std::string& prefix, std::size_t num_first_tokens);

}  // namespace sortie::trainer
