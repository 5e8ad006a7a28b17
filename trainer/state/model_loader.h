// Loads the model of a checkpoint, ready to predict.
#pragma once

#include <filesystem>
#include <memory>

#include "common/config/schema.h"
#include "trainer/checkpoint/find.h"
#include "trainer/models/model.h"
#include "trainer/storage/work_progress.h"
#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {

struct LoadedModel {
  std::filesystem::path folder;  // of the checkpoint
  config::JobConfig job;         // as it was trained
  std::int64_t step = 0;
  std::string run_id;
  ExecutionContext context;
  ParameterStore store;
  std::unique_ptr<LanguageModel> model;

  LoadedModel(int threads, Device device) : context(threads, device) {}
  /// Returns the tokenizer `named`, which must have the vocabulary of the checkpoint's own. If
  /// `named` is empty, returns the checkpoint's own: the one that it contains, otherwise the one
  /// that its config names. ErrorCode::data if there is none.
  Result<std::unique_ptr<Tokenizer>> tokenizer(const std::string& named = {}) const;
  /// Encodes a text that the model is to continue, and appends it to `ids`, after the special
  /// tokens that the tokenizer puts before a text if the training texts had them, or if that is
  /// unknown. Those that end a text do not follow.
  Result<> encode_prompt(const Tokenizer& tokenizer, std::string_view text,
                         std::vector<std::int32_t>& ids) const;
  /// Returns the special tokens that precede such a text.
  Result<std::vector<std::int32_t>> tokens_before_prompt(const Tokenizer& tokenizer) const;
  /// Returns the tokens that end a text: those of the folder's generation_config.json or
  /// config.json, otherwise the tokenizer's end-of-document token. For a model of conversations
  /// also the mark that ends an answer.
  Result<std::vector<std::int32_t>> stop_tokens(const Tokenizer& tokenizer) const;
};

/// Loads a model from a checkpoint's folder, or from the newest checkpoint in a folder of
/// checkpoints that passes the check, as a resume does. What a damaged checkpoint computes looks
/// sound, so its bytes are compared. `precision` as in [model]. `progress` counts the bytes that
/// are checked, then those of the weights as f32.
Result<std::unique_ptr<LoadedModel>> load_model(const std::filesystem::path& place, int threads,
                                                const std::string& precision = "auto",
                                                Device device = {}, const OnProgress& progress = {},
                                                CheckDepth depth = CheckDepth::hashes);

}  // namespace sortie::trainer
