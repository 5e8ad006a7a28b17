// The validation sets and all data files of a job, from all keys that name them. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "common/config/schema.h"

namespace sortie::config {

/// A set with its own validation loss: token files or conversations, not both.
struct ValidationSet {
  std::string name{};
  std::string key{};                      // config key that names the set, for messages
  std::vector<std::string> prefixes{};    // token files
  std::vector<std::string> chat_files{};  // conversations (JSONL)
};

/// The set of validation_data_prefixes or validation_chat_files, named kMainSet, then those of
/// validation_sets in the order of their names.
std::vector<ValidationSet> validation_sets(const DataConfig& data);
inline constexpr const char* kMainSet = "validation";

/// A file that ranks read: PREFIX stands for PREFIX.bin and PREFIX.idx.
struct DataPath {
  std::string key;
  std::string path;
  bool is_prefix = false;
};
/// Token files, conversations and the tokenizer's file, in the order of the keys.
std::vector<DataPath> data_paths(const DataConfig& data);

}  // namespace sortie::config
