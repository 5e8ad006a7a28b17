#include "trainer/model_loader.h"

#include <fmt/core.h>

#include "common/config/load.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/nn/lora.h"
#include "trainer/trainer.h"

namespace sortie::trainer {
namespace {

Result<std::filesystem::path> resolve_checkpoint(const std::filesystem::path& place) {
  std::error_code ignored;
  if (std::filesystem::exists(place / kCommitFile, ignored)) return place;
  SORTIE_ASSIGN_OR_RETURN(const LatestCheckpoint latest, find_latest(place));
  if (!latest.entry)
    return fail(ErrorCode::checkpoint,
                fmt::format("{}: no committed checkpoint there", place.string()));
  return latest.entry->folder;
}

}  // namespace

Result<std::unique_ptr<LoadedModel>> load_model(const std::filesystem::path& place, int threads,
                                                const std::string& precision) {
  SORTIE_ASSIGN_OR_RETURN(const std::filesystem::path folder, resolve_checkpoint(place));
  SORTIE_ASSIGN_OR_RETURN(CheckpointReader reader,
                          CheckpointReader::open(folder, CheckDepth::sizes));
  // The model is the one that was trained: its config is part of the checkpoint.
  SORTIE_ASSIGN_OR_RETURN(
      config::LoadedJob loaded,
      config::load_job_text(reader.manifest().config, (folder / kManifestFile).string()));
  SORTIE_ASSIGN_OR_RETURN(const DType dtype, choose_precision(precision, cpu_facts()));
  auto result = std::make_unique<LoadedModel>(threads);
  result->folder = folder;
  result->job = std::move(loaded.job);
  result->step = reader.manifest().step;
  result->run_id = reader.manifest().run_id;
  ParameterStore& store = result->store;
  result->model = std::make_unique<LanguageModel>(result->context, result->job.model, store,
                                                  /*recompute_layers=*/false);
  SORTIE_TRY(add_lora(result->job.lora, store));
  store.finalize(result->context, dtype, 16, /*with_optimizer=*/false);
  for (const auto& parameter : store.parameters()) {
    Dims shape;
    for (int i = 0; i < parameter->spec().shape.dims(); ++i)
      shape.push_back(parameter->spec().shape[i]);
    const auto values = store.master().subspan(static_cast<std::size_t>(parameter->offset()),
                                               static_cast<std::size_t>(parameter->elements()));
    SORTIE_TRY(reader.read_f32("model." + parameter->name(), shape, Piece::whole(shape), values));
  }
  store.refresh_compute_copy(result->context);
  return result;
}

}  // namespace sortie::trainer
