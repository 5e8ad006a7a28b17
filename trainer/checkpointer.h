// Training state to and from checkpoints. Rank 0 reads and writes; the others receive their state
// over the communicator, so that hosts need not share the folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "common/config/schema.h"
#include "trainer/checkpoint/store.h"
#include "trainer/nn/parameter.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Everything that changes from step to step, besides the flat buffers.
struct TrainingProgress {
  std::int64_t step = 0;              // steps done, skipped ones included
  std::int64_t consumed_samples = 0;  // position in the data
  std::int64_t updates = 0;           // AdamW's t
  std::int64_t consecutive_skips = 0;
};

/// What the bits of a training run depend on; a resume under others is announced.
struct BitFacts {
  std::string isa, libraries, build;
  std::int64_t threads = 1, world_size = 1;
  std::string precision;
};

struct SavedCheckpoint {
  std::filesystem::path path;
  std::int64_t bytes = 0;
  double seconds = 0.0;
};

struct LoadedCheckpoint {
  std::filesystem::path path;
  TrainingProgress progress;
  std::string differences;  // "threads 2 -> 1": empty when bits will go on as if never stopped
};

class Checkpointer {
 public:
  /// All references must outlive it.
  Checkpointer(const config::JobConfig& job, const BitFacts& facts, ParameterStore& store,
               Communicator& communicator);
  /// Recorded in every manifest.
  void set_run_id(std::string run_id) { run_id_ = std::move(run_id); }

  /// Saves and commits; collective. The same outcome on every rank.
  Result<SavedCheckpoint> save(const TrainingProgress& progress);

  /// Loads trainer.load_dir, or the newest committed checkpoint of trainer.save_dir, if there is
  /// one; collective. A named load_dir without a usable checkpoint is ErrorCode::checkpoint.
  Result<std::optional<LoadedCheckpoint>> load();

 private:
  Result<SavedCheckpoint> write(const TrainingProgress& progress);
  Result<std::optional<LoadedCheckpoint>> read();

  const config::JobConfig& job_;
  const BitFacts& facts_;
  ParameterStore& store_;
  Communicator& communicator_;
  std::string run_id_;
  std::optional<CheckpointStore> folder_;  // rank 0, from the first save on
  std::filesystem::path notes_from_;       // rank 0: the checkpoint that may have import notes
};

}  // namespace sortie::trainer
