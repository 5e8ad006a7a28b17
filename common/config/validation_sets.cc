#include "common/config/validation_sets.h"

#include "common/config/forms.h"

namespace sortie::config {

std::vector<ValidationSet> validation_sets(const DataConfig& data) {
  std::vector<ValidationSet> sets;
  if (!data.validation_data_prefixes.empty())
    sets.push_back({.name = kMainSet,
                    .key = "data.validation_data_prefixes",
                    .prefixes = data.validation_data_prefixes});
  else if (!data.validation_chat_files.empty())
    sets.push_back({.name = kMainSet,
                    .key = "data.validation_chat_files",
                    .chat_files = data.validation_chat_files});
  for (const auto& [name, path] : data.validation_sets) {
    ValidationSet& set = sets.emplace_back();
    set.name = name;
    set.key = "data.validation_sets." + name;
    (path.ends_with(".jsonl") ? set.chat_files : set.prefixes).push_back(path);
  }
  return sets;
}

std::vector<DataPath> data_paths(const DataConfig& data) {
  std::vector<DataPath> paths;
  for (const std::string& prefix : data.data_prefixes)
    paths.push_back({"data.data_prefixes", prefix, true});
  for (const std::string& file : data.chat_files) paths.push_back({"data.chat_files", file, false});
  for (const ValidationSet& set : validation_sets(data)) {
    for (const std::string& prefix : set.prefixes) paths.push_back({set.key, prefix, true});
    for (const std::string& file : set.chat_files) paths.push_back({set.key, file, false});
  }
  if (const std::string_view file = tokenizer_file(data.tokenizer); !file.empty())
    paths.push_back({"data.tokenizer", std::string(file), false});
  return paths;
}

}  // namespace sortie::config
