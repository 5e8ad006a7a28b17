// A Hugging Face folder: its config.json and the tensors of its safetensors files.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/checkpoint/shard_file.h"
#include "trainer/hf/tensors.h"

namespace sortie::trainer {

class HfFolder {
 public:
  /// Reads config.json and maps model.safetensors, or all files of model.safetensors.index.json.
  /// Every byte of the headers is checked.
  static Result<HfFolder> open(const std::filesystem::path& folder);
  /// Whether the folder has a config.json.
  static bool is_one(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return path_; }
  const nlohmann::json& config_json() const { return config_json_; }
  const config::ModelConfig& model() const { return model_; }

  /// A tensor as stored in the folder.
  struct Stored {
    const TensorEntry* entry;
    std::span<const std::byte> bytes;
  };
  /// Returns the stored tensor for each of `tensors`, in their order. If tensors are missing,
  /// unexpected or of the wrong shape or type, returns one error that lists them all.
  Result<std::vector<Stored>> match(const std::vector<HfTensor>& tensors) const;
  /// The prefix that the folder omits from its tensor names ("transformer." in old GPT-2 folders);
  /// empty if none.
  std::string left_out_prefix() const;

 private:
  void find_prediction_layers();

  struct Place {
    std::size_t file;
    const TensorEntry* entry;
  };
  std::filesystem::path path_;
  nlohmann::json config_json_;
  config::ModelConfig model_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place, std::less<>> places_;
};

/// Returns `name` without `prefix`, if it starts with it.
std::string without_prefix(std::string_view name, std::string_view prefix);

/// Copies a file into a folder, replaces a file of the same name there, and syncs it to disk.
Result<> copy_into(const std::filesystem::path& file, const std::filesystem::path& folder);

/// Returns the files besides weights and config.json that an export copies. Empty if the path is
/// empty.
std::vector<std::filesystem::path> hf_assets(const std::filesystem::path& folder);

}  // namespace sortie::trainer
