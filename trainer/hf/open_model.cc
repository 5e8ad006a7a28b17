#include "trainer/hf/open_model.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <set>

#include "common/config/saved.h"
#include "trainer/checkpoint/open_checkpoint.h"
#include "trainer/checkpoint/weight_types.h"
#include "trainer/hf/import.h"
#include "trainer/hf/llmc.h"
#include "trainer/nn/lora.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/linear.h"

namespace sortie::trainer {
namespace {

namespace fs = std::filesystem;

/// Declares the parameters without memory for them, so that a file's content is checked before
/// allocation.
void declare(OpenedModel& opened, int threads, Device device) {
  opened.context = std::make_unique<ExecutionContext>(threads, device);
  opened.store = std::make_unique<ParameterStore>();
  opened.model = std::make_unique<LanguageModel>(*opened.context, opened.config, *opened.store,
                                                 /*recompute_layers=*/false);
  opened.tensors =
      hf_tensors(family_of(opened.config.architecture), opened.model->shape(), *opened.store);
}

/// Maps rows of parameters to the tensors of a folder.
struct FolderRows {
  HfFolder folder;
  struct Part {
    HfTensor tensor;
    HfFolder::Stored stored;
  };
  std::map<const Parameter*, std::vector<Part>> parts{};

  StoredRow operator()(const Parameter& parameter, std::int64_t row) const {
    for (const Part& part : parts.at(&parameter))
      if (row >= part.tensor.first_row && row < part.tensor.first_row + part.tensor.rows)
        return stored_row(part.tensor, part.stored.entry->type, part.stored.bytes, row);
    return {};  // the padding of the vocabulary
  }
};

Result<> find_in_folder(StoredModel& found, const fs::path& place, int threads, Device device) {
  OpenedModel& opened = found.opened;
  SORTIE_ASSIGN_OR_RETURN(HfFolder folder, HfFolder::open(place));
  opened.config = folder.model();
  opened.config_json = folder.config_json();
  opened.left_out_prefix = folder.left_out_prefix();
  opened.assets = place;
  declare(opened, threads, device);
  const auto rows = std::make_shared<FolderRows>(FolderRows{std::move(folder)});
  SORTIE_ASSIGN_OR_RETURN(const auto stored, rows->folder.match(opened.tensors));
  for (std::size_t i = 0; i < stored.size(); ++i) {
    opened.types.push_back(stored[i].entry->type);
    rows->parts[opened.tensors[i].parameter].push_back({opened.tensors[i], stored[i]});
  }
  found.row = [rows](const Parameter& parameter, std::int64_t row) {
    return (*rows)(parameter, row);
  };
  return {};
}

Result<> find_in_llmc(StoredModel& found, const fs::path& place, int threads, Device device) {
  OpenedModel& opened = found.opened;
  SORTIE_ASSIGN_OR_RETURN(LlmcFile opened_file, LlmcFile::open(place));
  const auto file = std::make_shared<const LlmcFile>(std::move(opened_file));
  opened.config = file->header().model;
  SORTIE_ASSIGN_OR_RETURN(opened.config_json, file->config_json());
  declare(opened, threads, device);
  opened.types.assign(opened.tensors.size(), file->header().type);
  found.row = [file](const Parameter& parameter, std::int64_t row) {
    return file->row(parameter.name(), row);
  };
  return {};
}

/// The tensors of a checkpoint: views of its files, or copies of tensors that were put together.
struct CheckpointRows {
  CheckpointReader reader;
  struct Matrix {
    std::span<const std::byte> bytes{};
    StorageType type = StorageType::f32;
    std::vector<std::byte> own{};
  };
  std::map<const Parameter*, Matrix> matrices{};

  Result<> add(const Parameter& parameter) {
    const std::string name = "model." + parameter.name();
    const Dims shape = dims_of(parameter.spec().shape);
    const Manifest::Tensor* stored = reader.find(name);
    Matrix matrix;
    if (stored != nullptr && stored->shape == shape && is_weight_type(stored->type)) {
      SORTIE_ASSIGN_OR_RETURN(matrix.bytes, reader.view(name));
      matrix.type = stored->type;
    }
    if (matrix.bytes.empty()) {  // stored in pieces, or read_f32() returns an error
      matrix.type = StorageType::f32;
      matrix.own.resize(static_cast<std::size_t>(parameter.elements()) * sizeof(float));
      const std::span<float> values(reinterpret_cast<float*>(matrix.own.data()),
                                    static_cast<std::size_t>(parameter.elements()));
      SORTIE_TRY(reader.read_f32(name, shape, Piece::whole(shape), values));
      matrix.bytes = matrix.own;
    }
    matrices[&parameter] = std::move(matrix);
    return {};
  }
  /// Adds its low-rank update to a weight that add() has read, with the same bits as merge_lora().
  Result<> merge(ExecutionContext& cpu, const Parameter& weight, const LowRank& update) {
    const auto read = [this](const Parameter& parameter, std::vector<std::byte>& into) {
      const Dims shape = dims_of(parameter.spec().shape);
      into.resize(static_cast<std::size_t>(parameter.elements()) * sizeof(float));
      return reader.read_as("model." + parameter.name(), StorageType::f32, shape,
                            Piece::whole(shape), into);
    };
    const auto tensor_of = [](std::vector<std::byte>& values, const Parameter& parameter) {
      return Tensor::wrap(values.data(), DType::f32, parameter.spec().shape);
    };
    Matrix merged;
    std::vector<std::byte> up_values, down_values;
    SORTIE_TRY(read(weight, merged.own));
    SORTIE_TRY(read(*update.up, up_values));
    SORTIE_TRY(read(*update.down, down_values));
    Tensor matrix = tensor_of(merged.own, weight), up = tensor_of(up_values, *update.up);
    ops::merge_low_rank(cpu, up, tensor_of(down_values, *update.down), update.scale, matrix);
    merged.bytes = merged.own;
    matrices.at(&weight) = std::move(merged);
    return {};
  }
  StoredRow operator()(const Parameter& parameter, std::int64_t row) const {
    const Matrix& matrix = matrices.at(&parameter);
    const std::size_t row_bytes =
        matrix.bytes.size() / static_cast<std::size_t>(parameter.spec().shape[0]);
    return {matrix.bytes.data() + static_cast<std::size_t>(row) * row_bytes, 1, matrix.type};
  }
};

/// Merges low-rank updates into their weights. Adds the names of their parameters to `names`.
Result<> merge_updates(const OpenedModel& opened, const config::LoraConfig& lora,
                       CheckpointRows& rows, std::set<std::string>& names) {
  ExecutionContext cpu(opened.context->threads());
  ParameterStore updated;  // declared only, to find which weights have an update
  const LanguageModel model(cpu, opened.config, updated, /*recompute_layers=*/false);
  SORTIE_TRY(add_lora(lora, updated));
  for (const auto& parameter : updated.parameters()) {
    names.insert("model." + parameter->name());
    if (parameter->low_rank())
      SORTIE_TRY(rows.merge(cpu, *opened.store->find(parameter->name()), *parameter->low_rank()));
  }
  return {};
}

Result<> find_in_checkpoint(StoredModel& found, const fs::path& place, int threads, Device device,
                            const OnProgress& progress) {
  OpenedModel& opened = found.opened;
  // Every byte: what is made of a damaged checkpoint would look sound.
  SORTIE_ASSIGN_OR_RETURN(
      CheckpointReader reader,
      open_checkpoint(place, CheckDepth::files, ", nor the config.json of a Hugging Face model",
                      progress));
  const fs::path folder = reader.folder();
  SORTIE_ASSIGN_OR_RETURN(
      const config::JobConfig job,
      config::parse_saved_model(reader.manifest().config, (folder / kManifestFile).string()));
  opened.config = job.model;
  opened.checkpoint = folder;
  declare(opened, threads, device);
  const auto rows = std::make_shared<CheckpointRows>(CheckpointRows{std::move(reader)});
  std::uint64_t done = 0;
  for (const auto& parameter : opened.store->parameters()) {
    SORTIE_TRY(rows->add(*parameter));
    ++done;
    if (progress)
      progress({"loading checkpoint", done, opened.store->parameters().size(), "tensors"});
  }
  std::set<std::string> names;
  for (const auto& parameter : opened.store->parameters())
    names.insert("model." + parameter->name());
  if (job.lora.rank > 0) SORTIE_TRY(merge_updates(opened, job.lora, *rows, names));
  SORTIE_TRY(rows->reader.expect_no_others("model.", names));
  found.row = [rows](const Parameter& parameter, std::int64_t row) {
    return (*rows)(parameter, row);
  };
  return read_import_notes(opened, folder);
}

}  // namespace

Dims dims_of(const Shape& shape) {
  Dims dims;
  for (int i = 0; i < shape.dims(); ++i) dims.push_back(shape[i]);
  return dims;
}

TensorData StoredModel::parameter_data(const Parameter& parameter, StorageType type) const {
  const std::int64_t rows = parameter.spec().shape[0];
  return gather_rows(rows, parameter.elements() / rows, type,
                     [this, &parameter](std::int64_t r) { return row(parameter, r); });
}

Result<StoredModel> find_model(const fs::path& place, int threads, Device device,
                               const OnProgress& progress) {
  StoredModel found;
  std::error_code ignored;
  SORTIE_TRY(HfFolder::is_one(place) ? find_in_folder(found, place, threads, device)
             : fs::is_regular_file(place, ignored)
                 ? find_in_llmc(found, place, threads, device)
                 : find_in_checkpoint(found, place, threads, device, progress));
  return found;
}

Result<OpenedModel> open_model(const fs::path& place, const OpenOptions& options) {
  SORTIE_ASSIGN_OR_RETURN(StoredModel found, find_model(place, options.threads, options.device));
  ParameterStore& store = *found.opened.store;
  store.finalize(*found.opened.context, options.dtype, 16, options.gradients);
  for (const auto& parameter : store.parameters()) {
    const ops::HostAccess<float> master(
        store.context(), store.master().slice(0, parameter->offset(), parameter->elements()),
        ops::HostValues::replaced);
    std::span<std::byte> out = std::as_writable_bytes(master.span());
    const TensorData data = found.parameter_data(*parameter, StorageType::f32);
    if (data.make) data.make(0, out);
    for (const auto& part : data.parts) {
      std::memcpy(out.data(), part.data(), part.size());
      out = out.subspan(part.size());
    }
  }
  store.refresh_compute_copy(*found.opened.context);
  store.weights_changed();
  return std::move(found.opened);
}

}  // namespace sortie::trainer
