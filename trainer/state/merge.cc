#include "trainer/state/merge.h"

#include <fmt/core.h>

#include <ctime>

#include "common/config/load.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/lineage.h"
#include "trainer/checkpoint/shard_file.h"
#include "trainer/checkpoint/store.h"
#include "trainer/hf/import.h"
#include "trainer/nn/lora.h"
#include "trainer/ops/copy.h"
#include "trainer/storage/sha256.h"
#include "trainer/tokenizer/stored_tokenizer.h"

namespace sortie::trainer {

Result<std::filesystem::path> write_merged(LoadedModel& loaded, const std::filesystem::path& out) {
  if (loaded.job.lora.rank == 0)
    return fail(ErrorCode::checkpoint,
                fmt::format("{}: it has no low-rank updates to merge; it is a plain checkpoint",
                            loaded.folder.string()));
  SORTIE_TRY(check_has_no_checkpoint(out));
  merge_lora(loaded.store);
  loaded.store.refresh_compute_copy(loaded.context);
  loaded.store.weights_changed();
  config::JobConfig job = loaded.job;
  job.lora = {};
  std::vector<PieceToWrite> pieces;
  std::uint64_t bytes = 0;
  const ops::HostAccess<const float> master(loaded.context, loaded.store.master());
  for (const auto& parameter : loaded.store.parameters()) {
    if (is_lora_name(parameter->name())) continue;
    Dims shape;
    for (int i = 0; i < parameter->spec().shape.dims(); ++i)
      shape.push_back(parameter->spec().shape[i]);
    const auto data =
        std::as_bytes(master.span().subspan(static_cast<std::size_t>(parameter->offset()),
                                            static_cast<std::size_t>(parameter->elements())));
    pieces.push_back(
        {"model." + parameter->name(), StorageType::f32, shape, Piece::whole(shape), data});
    bytes += data.size();
  }
  Manifest manifest;
  manifest.run_id = loaded.run_id;
  manifest.step = loaded.step;
  manifest.seed = static_cast<std::uint64_t>(job.trainer.seed);
  manifest.created = std::time(nullptr);
  manifest.config = config::to_toml(job);
  manifest.config_digest = sha256_hex(manifest.config);
  SORTIE_ASSIGN_OR_RETURN(CheckpointStore store, CheckpointStore::open(out, {loaded.run_id}));
  SORTIE_ASSIGN_OR_RETURN(const std::filesystem::path folder, store.begin(loaded.step, bytes));
  SORTIE_ASSIGN_OR_RETURN(const ShardInfo shard, write_shard(folder, 0, 1, pieces));
  manifest.lineage = lineage_of_content(manifest.config + shard.sha256);
  SORTIE_TRY(carry_import_notes(loaded.folder, folder));
  SORTIE_TRY(carry_tokenizer_files(loaded.folder, folder));
  return store.commit(folder, std::move(manifest), {shard});
}

}  // namespace sortie::trainer
