// ModelLoader: the model of a checkpoint, ready to predict.
#pragma once

#include <filesystem>
#include <memory>

#include "common/config/schema.h"
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
  /// `named`, which must have the vocabulary of the checkpoint's own; empty: the checkpoint's own,
  /// that is the one it holds, else the one that its config names. ErrorCode::data where there is
  /// none.
  Result<std::unique_ptr<Tokenizer>> tokenizer(const std::string& named = {}) const;
  /// Appends a text that the model is to continue to `ids`: with the tokenizer's special tokens
  /// around it if the texts of the training had them, or if that is unknown.
  Result<> encode_prompt(const Tokenizer& tokenizer, std::string_view text,
                         std::vector<std::int32_t>& ids) const;
  /// The tokens before such a text.
  Result<std::vector<std::int32_t>> tokens_before_prompt(const Tokenizer& tokenizer) const;
  /// The tokens that end a text: those of that folder's generation_config.json, or config.json,
  /// else the tokenizer's end of a document. Of a model of conversations the mark that ends an
  /// answer, too.
  Result<std::vector<std::int32_t>> stop_tokens(const Tokenizer& tokenizer) const;
};

/// From a checkpoint's folder, or the newest in a folder of them. `precision` as in [model].
/// `progress` counts the bytes of the weights as f32.
Result<std::unique_ptr<LoadedModel>> load_model(const std::filesystem::path& place, int threads,
                                                const std::string& precision = "auto",
                                                Device device = {},
                                                const OnProgress& progress = {});

}  // namespace sortie::trainer
