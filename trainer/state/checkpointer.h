// Training state to and from checkpoints. Rank 0 reads and writes; the others receive their state
// over the communicator, so that hosts need not share the folder.
#pragma once

#include <filesystem>
#include <limits>
#include <optional>
#include <string>

#include "common/config/schema.h"
#include "trainer/checkpoint/store.h"
#include "trainer/nn/parameter.h"
#include "trainer/optim/outliers.h"
#include "trainer/parallel/communicator.h"
#include "trainer/samples/tokenizer_agreement.h"

namespace sortie::trainer {

/// Where in save_dir the checkpoint of the lowest validation loss is.
inline constexpr const char* kBestFolder = "best";

/// Everything that changes from step to step, besides the flat buffers.
struct TrainingProgress {
  std::int64_t step = 0;              // steps done, skipped ones included
  std::int64_t consumed_samples = 0;  // position in the data
  std::int64_t updates = 0;           // AdamW's t
  std::int64_t consecutive_skips = 0;
  OutlierState losses, gradient_norms;  // what the skipping of outliers has seen
  double best_validation_loss = std::numeric_limits<double>::infinity();
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
  bool weights_only = false;  // trainer.load_weights_from: progress is that of a fresh run
  TrainingProgress progress;
  std::string differences;  // "threads 2 -> 1": empty when bits will go on as if never stopped
};

class Checkpointer {
 public:
  /// All references must outlive it.
  Checkpointer(const config::JobConfig& job, const BitFacts& facts, ParameterStore& store,
               Communicator& communicator);
  /// What every checkpoint is to hold; a checkpoint of another tokenizer is not loaded. Rank 0.
  void set_tokenizer(RunTokenizer tokenizer) { tokenizer_ = std::move(tokenizer); }
  /// Recorded in every manifest.
  void set_run_id(std::string run_id) { run_id_ = std::move(run_id); }
  /// On rank 0: the run that began at step 0, whose checkpoint this one goes on from, or this one.
  const std::string& first_run_id() const {
    return first_run_id_.empty() ? run_id_ : first_run_id_;
  }

  /// Saves and commits; collective. The same outcome on every rank. The best checkpoint is in
  /// save_dir/best, the only one there, and does not count among those that keep_last keeps.
  enum class Series { regular, best };
  Result<SavedCheckpoint> save(const TrainingProgress& progress, Series series = Series::regular);

  /// Loads trainer.load_dir, or the newest committed checkpoint of trainer.save_dir, if there is
  /// one, else the weights alone from trainer.load_weights_from; collective. A named folder without
  /// a usable checkpoint is ErrorCode::checkpoint.
  Result<std::optional<LoadedCheckpoint>> load();

 private:
  Result<SavedCheckpoint> write(const TrainingProgress& progress, Series series);
  Result<std::optional<LoadedCheckpoint>> read();
  Result<LoadedCheckpoint> read_weights();

  const config::JobConfig& job_;
  const BitFacts& facts_;
  ParameterStore& store_;
  Communicator& communicator_;
  RunTokenizer tokenizer_;
  std::string run_id_, first_run_id_;
  std::optional<CheckpointStore> folder_, best_;  // rank 0, from the first save on
  std::filesystem::path notes_from_;  // rank 0: the checkpoint that may have import notes
};

}  // namespace sortie::trainer
