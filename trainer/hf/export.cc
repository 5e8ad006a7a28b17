#include <fmt/format.h>
#include <algorithm>

#include "common/base/atomic_file.h"
#include "trainer/hf/config_json.h"
#include "trainer/hf/export_assets.h"
#include "trainer/hf/import.h"
#include "trainer/storage/make_folder.h"

namespace sortie::trainer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Returns the name of an element type in a config.json of transformers.
std::string_view torch_name(StorageType type) {
  return type == StorageType::bf16 ? "bfloat16" : type == StorageType::f16 ? "float16" : "float32";
}

/// Splits the tensors, in order, into files of at most `limit` bytes. A larger tensor gets its own
/// file.
std::vector<std::vector<std::size_t>> cut(const OpenedModel& opened,
                                          const std::vector<StorageType>& types,
                                          std::uint64_t limit) {
  std::vector<std::vector<std::size_t>> files(1);
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < opened.tensors.size(); ++i) {
    const HfTensor& tensor = opened.tensors[i];
    const auto bytes =
        static_cast<std::uint64_t>(tensor.rows * tensor.cols) * storage_bytes(types[i]);
    if (size > 0 && size + bytes > limit) {
      files.emplace_back();
      size = 0;
    }
    files.back().push_back(i);
    size += bytes;
  }
  return files;
}

Result<> write_weights(const StoredModel& found, const std::vector<StorageType>& types,
                       const fs::path& out, const ExportOptions& options) {
  const OpenedModel& opened = found.opened;
  const auto files = cut(opened, types, options.max_shard_bytes);
  std::uint64_t all = 0, written_bytes = 0;
  for (std::size_t i = 0; i < types.size(); ++i)
    all += static_cast<std::uint64_t>(opened.tensors[i].rows * opened.tensors[i].cols) *
           storage_bytes(types[i]);
  const OnWritten count = [&](std::uint64_t size) {
    written_bytes = std::min(written_bytes + size, all);  // `all` excludes the files' headers
    if (options.progress) options.progress({"writing weights", written_bytes, all});
  };
  Json map = Json::object();
  std::uint64_t total = 0;
  for (std::size_t f = 0; f < files.size(); ++f) {
    const std::string file =
        files.size() == 1 ? "model.safetensors"
                          : fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, files.size());
    std::vector<TensorToWrite> tensors;
    for (const std::size_t i : files[f]) {
      const HfTensor& tensor = opened.tensors[i];
      TensorToWrite one;
      one.entry.name = without_prefix(tensor.name, opened.left_out_prefix);
      one.entry.type = types[i];
      one.entry.shape = tensor.shape;
      one.data = hf_tensor_data(tensor, types[i], [&found, &tensor](std::int64_t row) {
        return found.row(*tensor.parameter, row);
      });
      total += one.data.size;
      map[one.entry.name] = file;
      tensors.push_back(std::move(one));
    }
    // transformers rejects a file whose metadata does not name the library of its tensors.
    const auto written = write_safetensors(out / file, std::move(tensors), {{"format", "pt"}},
                                           Hashed::no, {.on_written = count});
    if (!written) return std::unexpected(written.error());
  }
  if (files.size() == 1) return {};
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  return write_file_atomic(out / "model.safetensors.index.json", index.dump(2) + "\n");
}

/// Removes the layers of multi-token prediction or, if `with`, adds copies of the embedding and the
/// head to them, as in DeepSeek-V3's own folders.
void choose_prediction_layers(OpenedModel& opened, std::vector<StorageType>& types, bool with) {
  std::vector<HfTensor> tensors;
  std::vector<StorageType> kept;
  for (std::size_t i = 0; i < opened.tensors.size(); ++i)
    if (with || !opened.tensors[i].mtp) {
      tensors.push_back(opened.tensors[i]);
      kept.push_back(types[i]);
    }
  const std::int64_t layers = with ? opened.config.mtp.num_layers : 0;
  for (std::int64_t k = 0; k < layers; ++k)
    for (const auto& [ours, part] :
         {std::pair("embedding.weight", "embed_tokens"),
          std::pair(opened.config.weight_tying ? "embedding.weight" : "head.weight",
                    "shared_head.head")})
      for (std::size_t i = 0; i < opened.tensors.size(); ++i)
        if (opened.tensors[i].parameter->name() == ours) {
          tensors.push_back(opened.tensors[i]);
          tensors.back().name =
              fmt::format("model.layers.{}.{}.weight", opened.config.num_layers + k, part);
          kept.push_back(types[i]);
        }
  opened.tensors = std::move(tensors);
  types = std::move(kept);
}

}  // namespace

Result<ImportReport> export_hf(const fs::path& checkpoint, const fs::path& folder,
                               const ExportOptions& options) {
  std::error_code error;
  // With a slash at the end the temporary folder would be inside.
  const fs::path out = folder.has_filename() ? folder : folder.parent_path();
  if (fs::exists(out, error) && (!fs::is_directory(out, error) || !fs::is_empty(out, error)))
    return fail(ErrorCode::usage,
                fmt::format("{}: exists and is not empty; name a new folder", out.string()));
  SORTIE_ASSIGN_OR_RETURN(StoredModel found,
                          find_model(checkpoint, /*threads=*/1, Device{}, options.progress));
  OpenedModel& opened = found.opened;
  std::vector<StorageType> types = opened.types;
  if (options.type)
    for (std::size_t i = 0; i < types.size(); ++i)  // a router's bias stays f32
      if (opened.tensors[i].parameter->spec().use != Use::state) types[i] = *options.type;
  choose_prediction_layers(opened, types, options.with_mtp);

  Json config = opened.config_json.is_object() ? opened.config_json : Json::object();
  SORTIE_TRY(write_hf_config(opened.config, config));
  // The config names the type of most weights, under the key that the file uses.
  std::int64_t most = -1;
  for (const StorageType type : {StorageType::f32, StorageType::bf16, StorageType::f16}) {
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < types.size(); ++i)
      if (types[i] == type) elements += opened.tensors[i].rows * opened.tensors[i].cols;
    if (elements <= most) continue;
    most = elements;
    config[config.contains("torch_dtype") ? "torch_dtype" : "dtype"] = torch_name(type);
  }

  // Writes everything to a temporary folder and renames it last, so that `out` is never incomplete.
  fs::path work = out;
  work += ".tmp";
  fs::remove_all(work, error);
  SORTIE_TRY(make_folder(work));
  const auto fill = [&]() -> Result<> {
    SORTIE_TRY(write_weights(found, types, work, options));
    SORTIE_TRY(export_assets(opened, config, work));
    SORTIE_TRY(write_file_atomic(work / "config.json", config.dump(2) + "\n"));
    fs::remove(out, error);  // an empty folder
    fs::rename(work, out, error);
    if (error) return std::unexpected(os_error(error.value(), out.string()));
    return {};
  };
  if (auto filled = fill(); !filled) {
    fs::remove_all(work, error);
    return std::unexpected(std::move(filled).error());
  }
  return ImportReport{out, static_cast<std::int64_t>(opened.tensors.size()),
                      parameter_elements(opened.tensors)};
}

}  // namespace sortie::trainer
