// Checkpointer: the checkpoint of the lowest validation loss. What save_dir/best contains counts,
// not what a regular checkpoint has recorded: that may be older than the best one, or record a loss
// whose checkpoint was never committed.
#include <cmath>

#include "common/base/log.h"
#include "trainer/checkpoint/lineage.h"
#include "trainer/state/checkpoint_state.h"
#include "trainer/state/checkpointer.h"

namespace sortie::trainer {

bool Checkpointer::keeps_best() const {
  const config::TrainerConfig& config = job_.trainer;
  return !config.save_dir.empty() && config.keep_best && config.eval_interval > 0;
}

/// Whether a checkpoint belongs to this run. Those of older versions have no lineage, only a first
/// run.
bool Checkpointer::is_of_this_run(const Manifest& manifest) const {
  if (!manifest.lineage.empty()) return manifest.lineage == start_.lineage;
  return !lineage_of(manifest).empty() && lineage_of(manifest) == first_run_id();
}

Result<BestValidation> Checkpointer::kept_best() const {
  const std::filesystem::path folder = std::filesystem::path(job_.trainer.save_dir) / kBestFolder;
  SORTIE_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries,
                          list_checkpoints(folder, CheckDepth::sizes));
  const RollbackFile known{start_.lineage, rollbacks_};
  BestValidation best;
  for (const CheckpointEntry& entry : entries) {
    if (!entry.manifest || !is_of_this_run(*entry.manifest) || is_abandoned(*entry.manifest, known))
      continue;
    const BestValidation one = recorded_progress(*entry.manifest).best;
    if (one.step == entry.step && one.loss < best.loss) best = one;
  }
  return best;
}

/// Rank 0: returns the best so far of a run that continues from a checkpoint which has `recorded`
/// one. Removes best checkpoints that a rollback has abandoned, as is done with regular ones.
Result<BestValidation> Checkpointer::settle_best(const BestValidation& recorded) {
  if (!keeps_best()) return recorded;
  if (auto removed = best_->discard_abandoned(RollbackFile{start_.lineage, rollbacks_}); !removed)
    log::warning("{}", removed.error().message);
  SORTIE_ASSIGN_OR_RETURN(const BestValidation kept, kept_best());
  // No checkpoint has the initial weights.
  const bool initial = recorded.step == 0;
  return initial && !std::isfinite(kept.loss) ? recorded : kept;
}

}  // namespace sortie::trainer
