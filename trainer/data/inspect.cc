#include "trainer/data/inspect.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <filesystem>

#include "common/base/check.h"
#include "trainer/data/id_range.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace {

Result<> compare_with_manifest(const TokenFile& file, const BuildManifest& manifest) {
  const BuildManifestPart* part = part_of(manifest, file.prefix());
  SORTIE_CHECK(part != nullptr, "a manifest that does not list {}", file.prefix());
  auto differs = [&](std::string_view what, const auto& has, const auto& wants) {
    return fail(ErrorCode::data,
                fmt::format("{}: {} is {}, but its manifest says {}; the file was changed after it "
                            "was built",
                            file.prefix(), what, has, wants));
  };
  if (file.num_documents() != part->documents)
    return differs("number of documents", file.num_documents(), part->documents);
  if (file.num_tokens() != part->tokens)
    return differs("number of tokens", file.num_tokens(), part->tokens);
  if (const std::string hash = sha256_hex(file.idx_bytes()); hash != part->idx_sha256)
    return differs("SHA-256 of the .idx", hash, part->idx_sha256);
  if (const std::string hash = sha256_hex(file.bin_bytes()); hash != part->bin_sha256)
    return differs("SHA-256 of the .bin", hash, part->bin_sha256);
  return {};
}

}  // namespace

Result<Inspection> inspect_token_file(const std::string& prefix, std::size_t num_first_tokens) {
  SORTIE_ASSIGN_OR_RETURN(const TokenFile file, TokenFile::open(prefix));
  file.expect_sequential();
  Inspection inspection;
  inspection.documents = file.num_documents();
  inspection.tokens = file.num_tokens();
  inspection.type = file.index().type();
  inspection.bin_bytes = file.bin_bytes().size();
  inspection.idx_bytes = file.idx_bytes().size();
  inspection.fingerprint = file.fingerprint();
  for (std::uint64_t i = 0; i < inspection.documents; ++i) {
    const std::uint64_t tokens = file.index().document_tokens(i);
    inspection.shortest = i == 0 ? tokens : std::min(inspection.shortest, tokens);
    inspection.longest = std::max(inspection.longest, tokens);
    ++inspection.lengths[static_cast<std::size_t>(std::bit_width(tokens))];
  }
  if (inspection.tokens > 0) {
    const IdRange range = id_range(inspection.type, file.bin_bytes());
    inspection.min_id = range.min;
    inspection.max_id = range.max;
  }
  inspection.first_tokens.resize(std::min<std::uint64_t>(inspection.tokens, num_first_tokens));
  SORTIE_TRY(file.read(0, std::numeric_limits<std::int32_t>::max(), inspection.first_tokens));
  SORTIE_ASSIGN_OR_RETURN(inspection.manifest, find_build_manifest(prefix));
  if (inspection.manifest) SORTIE_TRY(compare_with_manifest(file, *inspection.manifest));
  return inspection;
}

}  // namespace sortie::trainer
