// A model with its weights, from a checkpoint, a Hugging Face folder or a file of llm.c.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "trainer/hf/folder.h"
#include "trainer/hf/stored_rows.h"
#include "trainer/models/model.h"
#include "trainer/storage/work_progress.h"

namespace sortie::trainer {

struct OpenedModel {
  config::ModelConfig config;
  std::unique_ptr<ExecutionContext> context;
  std::unique_ptr<ParameterStore> store;
  std::unique_ptr<LanguageModel> model;
  std::vector<HfTensor> tensors;   // how the weights are called in a Hugging Face folder
  std::vector<StorageType> types;  // of each of them where they came from
  std::string left_out_prefix;     // of their names there
  std::filesystem::path assets;    // tokenizer and the like lie there; empty = nowhere
  nlohmann::json config_json;      // where it came from a folder or file as above, else null
  std::optional<std::filesystem::path> checkpoint;  // where it came from one
};

/// A model whose weights stay in their files: `opened.store` has no memory.
struct StoredModel {
  OpenedModel opened;
  /// A row of a parameter (an element, where it is a vector). The files are open as long as this.
  std::function<StoredRow(const Parameter& parameter, std::int64_t row)> row;

  /// All of a parameter; this must outlive it.
  TensorData parameter_data(const Parameter& parameter, StorageType type) const;
};
/// Of a place as open_model() takes it. Low-rank updates of a checkpoint are merged into their
/// weights, which are then in memory, in f32. Tensors of the model that its config does not have
/// are ErrorCode::checkpoint. `progress` counts the tensors of a checkpoint.
Result<StoredModel> find_model(const std::filesystem::path& place, int threads = 1,
                               Device device = {}, const OnProgress& progress = {});

Dims dims_of(const Shape& shape);

struct OpenOptions {
  DType dtype = DType::f32;
  int threads = 1;
  bool gradients = false;  // memory for them
  Device device = {};      // that the weights lie on
};
/// A checkpoint, the newest of a folder of checkpoints, a Hugging Face folder, or a file, which is
/// one of llm.c.
Result<OpenedModel> open_model(const std::filesystem::path& place, const OpenOptions& options);

}  // namespace sortie::trainer
