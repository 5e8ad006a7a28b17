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
  std::vector<HfTensor> tensors;   // with the names of a Hugging Face folder
  std::vector<StorageType> types;  // of each tensor, where the model came from
  std::string left_out_prefix;     // the prefix that tensor names omit there
  std::filesystem::path assets;    // folder with the tokenizer and its companions; empty = none
  nlohmann::json config_json;      // of the folder or file that the model came from, else null
  std::optional<std::filesystem::path> checkpoint;  // set if the model came from one
};

/// A model whose weights stay in their files. `opened.store` has no memory.
struct StoredModel {
  OpenedModel opened;
  /// Returns a row of a parameter (an element, if it is a vector). The files stay open as long as
  /// this object exists.
  std::function<StoredRow(const Parameter& parameter, std::int64_t row)> row;

  /// Returns all of a parameter. This object must outlive the result.
  TensorData parameter_data(const Parameter& parameter, StorageType type) const;
};
/// Finds the model at a place that open_model() accepts. Merges low-rank updates of a checkpoint
/// into their weights, which are then in memory in f32. ErrorCode::checkpoint if a byte of a
/// checkpoint was changed, or if it has tensors of the model that its config does not declare.
/// `progress` counts the bytes of a checkpoint that were checked, then its tensors.
Result<StoredModel> find_model(const std::filesystem::path& place, int threads = 1,
                               Device device = {}, const OnProgress& progress = {});

Dims dims_of(const Shape& shape);

struct OpenOptions {
  DType dtype = DType::f32;
  int threads = 1;
  bool gradients = false;  // allocate memory for them
  Device device = {};      // of the weights
};
/// Opens a checkpoint, the newest in a folder of checkpoints, a Hugging Face folder, or a file of
/// llm.c.
Result<OpenedModel> open_model(const std::filesystem::path& place, const OpenOptions& options);

}  // namespace sortie::trainer
