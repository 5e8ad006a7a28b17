// Checkpointer: checkpoints in memory, at the start of a run and in its steps.
#include <fmt/core.h>

#include "common/base/log.h"
#include "common/training/event.h"
#include "trainer/state/checkpointer.h"
#include "trainer/state/rank_texts.h"
#include "trainer/state/saved_job.h"

namespace sortie::trainer {

/// Rank 0: says why the run must not continue from this checkpoint in memory; "" if it may.
std::string Checkpointer::judge_memory(const Manifest& manifest) const {
  const bool resumes = start_.kind == StartPoint::Kind::resume;
  if (resumes && manifest.lineage != start_.lineage)
    return fmt::format("it is of run {}, those in trainer.save_dir are of {}", manifest.lineage,
                       start_.lineage);
  const auto rollbacks = read_rollbacks(job_.trainer.save_dir);
  if (!rollbacks) return rollbacks.error().message;
  if (is_abandoned(manifest, *rollbacks)) return "the run has gone back to an earlier step since";
  StartPoint start;
  start.kind = StartPoint::Kind::resume;
  start.folder = training::kFromMemory;
  start.manifest = manifest;
  const Result<> same = check_same_model(start, job_);
  return same ? "" : same.error().message;
}

/// Chooses the checkpoint in memory if it is newer than the one on the disk; collective.
Result<> Checkpointer::choose_from_memory() {
  if (job_.trainer.memory_checkpoint_interval == 0) return {};
  memory_ = std::make_unique<MemoryCheckpoints>(memory_folder_, claimant_, store_, communicator_,
                                                context_);
  SORTIE_TRY(memory_->prepare());
  const bool resumes = start_.kind == StartPoint::Kind::resume;
  const std::int64_t on_disk = resumes && start_.manifest ? start_.manifest->step : 0;
  const std::int64_t after = std::stoll(communicator_.all_gather(fmt::format("{}", on_disk))[0]);
  std::optional<Manifest> manifest = memory_->find(
      after, [this](const Manifest& found) { return judge_memory(found); }, start_notes_);
  if (communicator_.rank() != 0) start_notes_.clear();
  if (!manifest) return {};
  from_memory_ = true;
  Result<> outcome;
  if (communicator_.rank() == 0) {
    const auto file = read_rollbacks(job_.trainer.save_dir);
    if (file)
      rollbacks_ = rollbacks_from(*manifest, *file);
    else
      outcome = std::unexpected(file.error());
    if (start_.kind != StartPoint::Kind::seed) notes_from_ = start_.folder;
    start_.kind = StartPoint::Kind::resume;
    start_.reason = fmt::format("checkpoint in the memory of {} host{}; on the disk is {}",
                                memory_->hosts(), memory_->hosts() == 1 ? "" : "s",
                                on_disk > 0 ? fmt::format("step {}", on_disk) : "none");
    start_.folder = training::kFromMemory;
    start_.lineage = manifest->lineage;
    start_.origin = manifest->origin;
    start_.first_run_id =
        manifest->first_run_id.empty() ? manifest->run_id : manifest->first_run_id;
    start_.manifest = std::move(manifest);
  }
  SORTIE_TRY(share_outcome(communicator_, outcome));
  return share_start();
}

Result<> Checkpointer::reserve_memory() {
  if (!memory_) return {};
  return memory_->reserve();
}

void Checkpointer::begin_memory(const TrainingProgress& progress) {
  memory_->begin(make_manifest(progress));
}

std::optional<MemoryCheckpoints::Snapshot> Checkpointer::settle_memory(bool by_all) {
  if (!memory_) return std::nullopt;
  if (const std::string why = memory_->take_failure(); !why.empty())
    log::warning("no checkpoint in memory, training continues: {}", why);
  return memory_->settle(by_all);
}

}  // namespace sortie::trainer
