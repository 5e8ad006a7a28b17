// PREFIX.json: the manifest that records what a token file was built from. Read by people, by the
// checks at the start of training and by `data inspect`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace sortie::trainer {

struct BuildManifestPart {
  std::string name;  // file name of the prefix, without folder
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
  std::string bin_sha256;
  std::string idx_sha256;
  std::int64_t max_id = -1;  // largest token; -1 = no tokens, or not recorded (older files)
};

struct BuildManifest {
  std::string tokenizer{};  // in the syntax of make_tokenizer
  std::string tokenizer_sha256{};
  std::string vocabulary_sha256{};  // vocabulary_hash(); empty in older files
  std::int64_t vocab_size = 0;
  std::optional<std::int32_t> eod_id{};
  bool append_eod = false;
  bool add_special_tokens = false;
  std::string token_type{};
  std::uint64_t text_bytes = 0;
  std::uint64_t files = 0;
  std::uint64_t left_out_documents = 0;  // documents that are not text
  std::uint64_t left_out_bytes = 0;
  std::vector<BuildManifestPart> parts{};
};

std::string to_json(const BuildManifest& manifest);
Result<BuildManifest> parse_build_manifest(std::string_view text, std::string_view where);

/// Returns the part of PREFIX; nullptr if the manifest does not list it.
const BuildManifestPart* part_of(const BuildManifest& manifest, const std::string& prefix);

/// Returns the manifest of PREFIX, either as the whole output or as one part of a split. Files may
/// have been renamed together with their manifest: the part that is meant then has their new name.
/// Returns nullopt if there is none (other tools write no manifest). ErrorCode::data if PREFIX.json
/// is the manifest of several parts and none of them can be PREFIX.
Result<std::optional<BuildManifest>> find_build_manifest(const std::string& prefix);

}  // namespace sortie::trainer
