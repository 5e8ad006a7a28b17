#include "trainer/hf/open_model.h"

#include <fmt/format.h>

#include "common/base/atomic_file.h"
#include "common/config/load.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/hf/import.h"
#include "trainer/hf/llmc.h"

namespace sortie::trainer {
namespace {

namespace fs = std::filesystem;

Result<fs::path> find_checkpoint(const fs::path& place) {
  std::error_code ignored;
  if (fs::exists(place / kCommitFile, ignored)) return place;
  SORTIE_ASSIGN_OR_RETURN(const LatestCheckpoint latest, find_latest(place));
  if (!latest.entry)
    return fail(ErrorCode::checkpoint,
                fmt::format("{}: neither a committed checkpoint nor a Hugging Face folder (no "
                            "config.json)",
                            place.string()));
  return latest.entry->folder;
}

/// Declares the parameters; they have no memory yet, so that what a file asks for is checked first.
void declare(OpenedModel& opened, const OpenOptions& options) {
  opened.context = std::make_unique<ExecutionContext>(options.threads);
  opened.store = std::make_unique<ParameterStore>();
  opened.model = std::make_unique<LanguageModel>(*opened.context, opened.config, *opened.store,
                                                 /*recompute_layers=*/false);
  opened.tensors =
      hf_tensors(family_of(opened.config.architecture), opened.model->shape(), *opened.store);
}

Result<> read_folder(OpenedModel& opened, const fs::path& place, const OpenOptions& options) {
  SORTIE_ASSIGN_OR_RETURN(const HfFolder folder, HfFolder::open(place));
  opened.config = folder.model();
  opened.config_json = folder.config_json();
  opened.left_out_prefix = folder.left_out_prefix();
  opened.assets = place;
  declare(opened, options);
  SORTIE_ASSIGN_OR_RETURN(const auto stored, folder.match(opened.tensors));
  opened.store->finalize(*opened.context, options.dtype, 16, options.gradients);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    opened.types.push_back(stored[i].entry->type);
    read_hf_tensor(opened.tensors[i], stored[i].entry->type, stored[i].bytes,
                   opened.store->master());
  }
  return {};
}

Result<> read_llmc(OpenedModel& opened, const fs::path& place, const OpenOptions& options) {
  SORTIE_ASSIGN_OR_RETURN(const LlmcFile file, LlmcFile::open(place));
  opened.config = file.header().model;
  SORTIE_ASSIGN_OR_RETURN(opened.config_json, file.config_json());
  declare(opened, options);
  opened.store->finalize(*opened.context, options.dtype, 16, options.gradients);
  file.read(*opened.store);
  opened.types.assign(opened.tensors.size(), file.header().type);
  return {};
}

Result<> read_checkpoint(OpenedModel& opened, const fs::path& place, const OpenOptions& options) {
  SORTIE_ASSIGN_OR_RETURN(const fs::path folder, find_checkpoint(place));
  SORTIE_ASSIGN_OR_RETURN(CheckpointReader reader,
                          CheckpointReader::open(folder, CheckDepth::sizes));
  SORTIE_ASSIGN_OR_RETURN(
      const config::LoadedJob loaded,
      config::load_job_text(reader.manifest().config, (folder / kManifestFile).string()));
  opened.config = loaded.job.model;
  opened.checkpoint = folder;
  declare(opened, options);
  opened.store->finalize(*opened.context, options.dtype, 16, options.gradients);
  for (const auto& parameter : opened.store->parameters()) {
    Dims shape;
    for (int i = 0; i < parameter->spec().shape.dims(); ++i)
      shape.push_back(parameter->spec().shape[i]);
    const auto values =
        opened.store->master().subspan(static_cast<std::size_t>(parameter->offset()),
                                       static_cast<std::size_t>(parameter->elements()));
    SORTIE_TRY(reader.read("model." + parameter->name(), StorageType::f32, shape,
                           Piece::whole(shape), std::as_writable_bytes(values)));
  }
  return read_import_notes(opened, folder);
}

}  // namespace

Result<OpenedModel> open_model(const fs::path& place, const OpenOptions& options) {
  OpenedModel opened;
  std::error_code ignored;
  SORTIE_TRY(HfFolder::is_one(place)               ? read_folder(opened, place, options)
             : fs::is_regular_file(place, ignored) ? read_llmc(opened, place, options)
                                                   : read_checkpoint(opened, place, options));
  opened.store->refresh_compute_copy(*opened.context);
  opened.store->weights_changed();
  return opened;
}

}  // namespace sortie::trainer
