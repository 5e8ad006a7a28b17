// Checks that token files, config and checkpoint assign the same meaning to every token id.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "trainer/tokenizer/stored_tokenizer.h"

namespace sortie::trainer {

/// A statement of which tokenizer is used. `who` is its source: "data.tokenizer", "/d/wiki of
/// data.data_prefixes".
struct TokenizerClaim {
  std::string who;
  TokenizerId id;
};

/// What is known of a run's tokenizer before a checkpoint is read.
struct RunTokenizer {
  std::vector<TokenizerClaim> claims{};   // from the config and the token files; they agree
  std::optional<TokenizerFiles> files{};  // nullopt: the tokenizer is not known
  bool chatml = false;  // conversations in ChatML are used in training or validation
};

/// ErrorCode::data if two claims have different vocabularies. The message lists all claims.
Result<> check_tokenizers_agree(const std::vector<TokenizerClaim>& claims);

/// Returns the claims of the manifests of token files, one per tokenizer. Files without a manifest
/// make no claim. `key` is the config key that names the files.
Result<std::vector<TokenizerClaim>> claims_of_files(const std::vector<std::string>& prefixes,
                                                    const std::string& key);

/// Finds the tokenizer of data.tokenizer, otherwise the one that the token files were built with,
/// at its recorded path or in the folder of the token files. A missing or changed tokenizer file,
/// and token files of different tokenizers, are errors that name the keys.
/// files->form.special_tokens is set from the manifests; it is false for conversations. Both
/// `chatml` are set later, when the conversations are read.
Result<RunTokenizer> find_run_tokenizer(const config::JobConfig& job);

/// Checks that the weights of a checkpoint were trained with the tokenizer of `run`. A checkpoint
/// that holds no tokenizer agrees with any.
Result<> check_tokenizer_of_checkpoint(const RunTokenizer& run,
                                       const std::filesystem::path& checkpoint);

}  // namespace sortie::trainer
