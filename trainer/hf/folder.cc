#include "trainer/hf/folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "common/base/atomic_file.h"
#include "trainer/checkpoint/weight_types.h"
#include "trainer/hf/config_json.h"
#include "trainer/hf/weight_index.h"
#include "trainer/tokenizer/stored_tokenizer.h"

namespace sortie::trainer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kSingle = "model.safetensors";

Result<Json> read_json(const fs::path& path) {
  SORTIE_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded())
    return fail(ErrorCode::data, fmt::format("{}: not JSON; the file is damaged", path.string()));
  return json;
}

std::string shape_text(const Dims& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace

bool HfFolder::is_one(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / "config.json", ignored);
}

std::string without_prefix(std::string_view name, std::string_view prefix) {
  return std::string(name.starts_with(prefix) ? name.substr(prefix.size()) : name);
}

Result<HfFolder> HfFolder::open(const fs::path& path) {
  HfFolder folder;
  folder.path_ = path;
  if (!is_one(path))
    return fail(ErrorCode::not_found,
                fmt::format("{}: no config.json there, so it is no Hugging Face model folder",
                            path.string()));
  SORTIE_ASSIGN_OR_RETURN(folder.config_json_, read_json(path / "config.json"));
  SORTIE_ASSIGN_OR_RETURN(folder.model_,
                          read_hf_config(folder.config_json_, (path / "config.json").string()));
  std::set<std::string> names = {kSingle};
  std::error_code ignored;
  if (fs::exists(path / kIndex, ignored)) {
    SORTIE_ASSIGN_OR_RETURN(const std::string text, read_file(path / kIndex));
    SORTIE_ASSIGN_OR_RETURN(names, parse_weight_index(text, (path / kIndex).string()));
  } else if (!fs::exists(path / kSingle, ignored)) {
    return fail(ErrorCode::not_found,
                fmt::format("{}: neither {} nor {} there; other formats are not read",
                            path.string(), kSingle, kIndex));
  }
  for (const std::string& name : names) {
    SORTIE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path / name));
    folder.files_.push_back(std::move(file));
  }
  for (std::size_t i = 0; i < folder.files_.size(); ++i)
    for (const TensorEntry& entry : folder.files_[i].header().tensors)
      if (!folder.places_.emplace(entry.name, Place{i, &entry}).second)
        return fail(ErrorCode::data,
                    fmt::format("{}: tensor {} is in two files", path.string(), entry.name));
  folder.find_prediction_layers();
  return folder;
}

/// Sets mtp.num_layers to 0 if the folder lacks the layers of multi-token prediction that its
/// config declares.
void HfFolder::find_prediction_layers() {
  std::int64_t& layers = model_.mtp.num_layers;
  const std::string join = without_prefix(
      fmt::format("model.layers.{}.eh_proj.weight", model_.num_layers), left_out_prefix());
  if (layers > 0 && !places_.contains(join)) layers = 0;
}

std::string HfFolder::left_out_prefix() const {
  const std::string_view prefix = family_of(model_.architecture).hf.prefix;
  const bool there = std::ranges::any_of(
      places_, [&](const auto& place) { return place.first.starts_with(prefix); });
  return there ? std::string() : std::string(prefix);
}

Result<std::vector<HfFolder::Stored>> HfFolder::match(const std::vector<HfTensor>& tensors) const {
  const HfFormat& format = family_of(model_.architecture).hf;
  const std::string prefix = left_out_prefix();
  std::vector<std::string> problems;
  std::vector<Stored> stored;
  std::set<std::string, std::less<>> wanted;
  for (const HfTensor& tensor : tensors) {
    const std::string name = without_prefix(tensor.name, prefix);
    wanted.insert(name);
    const auto found = places_.find(name);
    if (found == places_.end()) {
      problems.push_back(fmt::format("missing: {} {}", name, shape_text(tensor.shape)));
      continue;
    }
    const TensorEntry& entry = *found->second.entry;
    if (entry.shape != tensor.shape)
      problems.push_back(fmt::format("wrong shape: {} is {}, config.json asks for {}", name,
                                     shape_text(entry.shape), shape_text(tensor.shape)));
    else if (!is_weight_type(entry.type))
      problems.push_back(fmt::format("wrong type: {} is {}, weights are F32, BF16 or F16", name,
                                     storage_name(entry.type)));
    else
      stored.push_back({&entry, files_[found->second.file].data(entry)});
  }
  const auto is_buffer = [&](std::string_view name) {
    return std::ranges::any_of(format.buffers,
                               [&](std::string_view end) { return name.ends_with(end); });
  };
  for (const auto& [name, place] : places_) {
    if (wanted.contains(name) || is_buffer(name)) continue;
    // Layers of multi-token prediction may carry copies of the embedding and the head.
    if (model_.mtp.num_layers > 0 &&
        (name.ends_with(".shared_head.head.weight") ||
         (name.ends_with(".embed_tokens.weight") && name.find("layers.") != std::string::npos)))
      continue;
    // A tied head may also be stored, with the same bytes as the embedding.
    const HfModule& head = *std::ranges::find(format.modules, "head", &HfModule::ours);
    const HfTensor* embedding = nullptr;
    for (const HfTensor& tensor : tensors)
      if (tensor.parameter->name() == "embedding.weight") embedding = &tensor;
    if (model_.weight_tying && name == std::string(head.hf) + ".weight" && embedding != nullptr) {
      const auto twin = places_.find(without_prefix(embedding->name, prefix));
      if (twin != places_.end() && twin->second.entry->type == place.entry->type &&
          std::ranges::equal(files_[twin->second.file].data(*twin->second.entry),
                             files_[place.file].data(*place.entry)))
        continue;
      problems.push_back(fmt::format(
          "unexpected: {}, which tie_word_embeddings makes the embedding, differs from it", name));
      continue;
    }
    problems.push_back(fmt::format("unexpected: {} {}", name, shape_text(place.entry->shape)));
  }
  if (!problems.empty())
    return fail(ErrorCode::data,
                fmt::format("{}: {} tensors are not those of a {} of this config.json:\n  {}",
                            path_.string(), problems.size(), format.architecture,
                            fmt::join(problems, "\n  ")));
  return stored;
}

std::vector<fs::path> hf_assets(const fs::path& folder) {
  std::vector<fs::path> found;
  if (folder.empty()) return found;
  std::error_code ignored;
  for (const std::string_view name : tokenizer_file_names())
    if (fs::is_regular_file(folder / name, ignored)) found.push_back(folder / name);
  return found;
}

Result<> copy_into(const fs::path& file, const fs::path& folder) {
  std::error_code error;
  fs::copy_file(file, folder / file.filename(), fs::copy_options::overwrite_existing, error);
  if (error)
    return std::unexpected(os_error(
        error.value(), fmt::format("{}: copying it to {} failed", file.string(), folder.string())));
  return sync_path(folder / file.filename());
}

}  // namespace sortie::trainer
