// Token files, config and checkpoint must mean the same by every token id.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "trainer/tokenizer/stored_tokenizer.h"

namespace sortie::trainer {

/// Who says which tokenizer it is: "data.tokenizer", "/d/wiki.json (built data.data_prefixes)".
struct TokenizerClaim {
  std::string who;
  TokenizerId id;
};

/// What is known of a run's tokenizer before a checkpoint is read.
struct RunTokenizer {
  std::vector<TokenizerClaim> claims{};   // of the config and the token files; they agree
  std::optional<TokenizerFiles> files{};  // absent: nobody says which tokenizer it is
  bool chatml = false;                    // conversations in ChatML are trained on, or validated on
};

/// ErrorCode::data that lists every claim where two of them have different vocabularies.
Result<> check_tokenizers_agree(const std::vector<TokenizerClaim>& claims);

/// The claims of the manifests beside token files; those without a manifest make none. One claim
/// per tokenizer. `key` is what names the files.
Result<std::vector<TokenizerClaim>> claims_of_files(const std::vector<std::string>& prefixes,
                                                    const std::string& key);

/// The tokenizer of data.tokenizer, else the one that the token files were built with, which must
/// be where it was, or beside them. An absent or changed file, and files of different tokenizers,
/// are errors that name the keys. What the manifests say of special tokens is in the form of its
/// files; whether conversations are in ChatML is known when they are read.
Result<RunTokenizer> find_run_tokenizer(const config::JobConfig& job);

/// Whether the weights of a checkpoint were trained with the tokenizer of `run`. Checkpoints that
/// hold none agree with any.
Result<> check_tokenizer_of_checkpoint(const RunTokenizer& run,
                                       const std::filesystem::path& checkpoint);

}  // namespace sortie::trainer
