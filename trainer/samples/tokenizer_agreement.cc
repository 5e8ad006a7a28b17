#include "trainer/samples/tokenizer_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/config/validation_sets.h"
#include "trainer/data/build_manifest.h"

namespace sortie::trainer {
namespace {

namespace fs = std::filesystem;

/// A tokenizer that the manifest of `prefix` names.
struct BuiltWith {
  TokenizerClaim claim;
  std::string prefix;
};

Result<std::vector<BuiltWith>> built_with(const std::vector<std::string>& prefixes,
                                          const std::string& key) {
  std::vector<BuiltWith> found;
  for (const std::string& prefix : prefixes) {
    SORTIE_ASSIGN_OR_RETURN(const auto manifest, find_build_manifest(prefix));
    if (!manifest) continue;
    const TokenizerId id = {manifest->tokenizer, manifest->tokenizer_sha256,
                            manifest->vocabulary_sha256};
    const bool known = std::ranges::any_of(found, [&](const BuiltWith& other) {
      return other.claim.id.name == id.name && other.claim.id.sha256 == id.sha256;
    });
    if (!known) found.push_back({{fmt::format("{} of {}", prefix, key), id}, prefix});
  }
  return found;
}

/// Returns the name of a manifest's tokenizer at its present place.
Result<std::string> locate(const BuiltWith& built) {
  const std::string& name = built.claim.id.name;
  const std::size_t colon = name.find(':');
  if (colon == name.npos) return name;
  const fs::path recorded = name.substr(colon + 1);
  const fs::path beside = fs::path(built.prefix).parent_path() / recorded.filename();
  for (const fs::path& place : {recorded, beside}) {
    const std::string candidate = name.substr(0, colon + 1) + place.string();
    const auto tokenizer = make_tokenizer(candidate);
    if (tokenizer && (*tokenizer)->model_hash() == built.claim.id.sha256) return candidate;
    if (tokenizer || tokenizer.error().code != ErrorCode::not_found)
      return fail(ErrorCode::data,
                  fmt::format("{}: was built with {}: {}; bring that file back, or build the token "
                              "files again",
                              built.claim.who, describe(built.claim.id),
                              tokenizer ? fmt::format("{} has changed since then", place.string())
                                        : tokenizer.error().message));
  }
  return fail(ErrorCode::data,
              fmt::format("{}: was built with {}: the file is not there, nor is {}; copy it there, "
                          "or set data.tokenizer to where it is",
                          built.claim.who, describe(built.claim.id), beside.string()));
}

/// Returns whether the training texts have special tokens around them; nullopt if unknown. One file
/// with them is enough for a model to know them.
Result<std::optional<bool>> special_tokens_of(const config::DataConfig& data) {
  if (!data.chat_files.empty()) return false;
  if (data.data_prefixes.empty()) return std::nullopt;
  std::optional<bool> added = false;
  for (const std::string& prefix : data.data_prefixes) {
    SORTIE_ASSIGN_OR_RETURN(const auto manifest, find_build_manifest(prefix));
    if (manifest && manifest->add_special_tokens) return true;
    if (!manifest) added.reset();
  }
  return added;
}

}  // namespace

Result<> check_tokenizers_agree(const std::vector<TokenizerClaim>& claims) {
  const bool agree = std::ranges::all_of(claims, [&](const TokenizerClaim& claim) {
    return same_vocabulary(claims.front().id, claim.id);
  });
  if (agree) return {};
  std::vector<std::string> lines;
  for (const TokenizerClaim& claim : claims)
    lines.push_back(fmt::format("  {}: {}", claim.who, describe(claim.id)));
  return fail(ErrorCode::data,
              fmt::format("tokenizer: these do not have the same vocabulary, so a token id means "
                          "something else in each:\n{}\nuse the tokenizer of the weights: build "
                          "the token files with it, or start from other weights",
                          fmt::join(lines, "\n")));
}

Result<std::vector<TokenizerClaim>> claims_of_files(const std::vector<std::string>& prefixes,
                                                    const std::string& key) {
  SORTIE_ASSIGN_OR_RETURN(const std::vector<BuiltWith> found, built_with(prefixes, key));
  std::vector<TokenizerClaim> claims;
  for (const BuiltWith& built : found) claims.push_back(built.claim);
  return claims;
}

Result<RunTokenizer> find_run_tokenizer(const config::JobConfig& job) {
  RunTokenizer run;
  SORTIE_ASSIGN_OR_RETURN(std::vector<BuiltWith> built,
                          built_with(job.data.data_prefixes, "data.data_prefixes"));
  for (const config::ValidationSet& set : config::validation_sets(job.data)) {
    SORTIE_ASSIGN_OR_RETURN(const std::vector<BuiltWith> more, built_with(set.prefixes, set.key));
    built.insert(built.end(), more.begin(), more.end());
  }
  std::string name = job.data.tokenizer;
  if (!name.empty()) {
    auto files = read_tokenizer_files(name);
    if (!files) return std::unexpected(with_context(std::move(files).error(), "data.tokenizer"));
    run.files = std::move(*files);
    run.claims.push_back({"data.tokenizer", run.files->id});
  }
  for (const BuiltWith& one : built) run.claims.push_back(one.claim);
  SORTIE_TRY(check_tokenizers_agree(run.claims));
  if (!run.files && !built.empty()) {
    SORTIE_ASSIGN_OR_RETURN(name, locate(built.front()));
    SORTIE_ASSIGN_OR_RETURN(run.files, read_tokenizer_files(name));
  }
  if (run.files) {
    SORTIE_ASSIGN_OR_RETURN(run.files->form.special_tokens, special_tokens_of(job.data));
  }
  return run;
}

Result<> check_tokenizer_of_checkpoint(const RunTokenizer& run, const fs::path& checkpoint) {
  SORTIE_ASSIGN_OR_RETURN(const auto stored, find_stored_tokenizer(checkpoint));
  if (!stored || run.claims.empty()) return {};
  std::vector<TokenizerClaim> claims = run.claims;
  claims.push_back({fmt::format("checkpoint {}", checkpoint.string()), *stored});
  return check_tokenizers_agree(claims);
}

}  // namespace sortie::trainer
