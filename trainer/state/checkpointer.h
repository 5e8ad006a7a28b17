// Training state to and from checkpoints. Rank 0 reads and writes; the others receive their state
// over the communicator, so that hosts need not share the folder.
#pragma once

#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/store.h"
#include "trainer/nn/parameter.h"
#include "trainer/optim/outliers.h"
#include "trainer/parallel/communicator.h"
#include "trainer/samples/tokenizer_agreement.h"
#include "trainer/state/start_point.h"

namespace sortie::trainer {

/// Everything that changes from step to step, besides the flat buffers.
struct TrainingProgress {
  std::int64_t step = 0;              // steps done, skipped ones included
  std::int64_t consumed_samples = 0;  // position in the data
  std::int64_t updates = 0;           // AdamW's t
  std::int64_t consecutive_skips = 0;
  OutlierState losses, gradient_norms;  // what the skipping of outliers has seen
  double best_validation_loss = std::numeric_limits<double>::infinity();
  std::int64_t best_validation_step = 0;
  // For people who look at a checkpoint; NaN = there is none.
  double loss = std::numeric_limits<double>::quiet_NaN();             // of the last step
  double validation_loss = std::numeric_limits<double>::quiet_NaN();  // the last one, after
  std::int64_t validation_step = 0;                                   // this step
};

/// What the bits of a training run depend on besides its config; a resume under others is
/// announced.
struct BitFacts {
  std::string isa, build;
  std::string onednn, mpi, libm;  // versions of the libraries that run
  std::string data;               // fingerprint of the training samples
  std::int64_t threads = 1, world_size = 1;
  std::string precision;
};

struct SavedCheckpoint {
  std::filesystem::path path;
  std::int64_t bytes = 0;
  double seconds = 0.0;
  std::string warning;  // old checkpoints that could not be removed; this one is committed
};

struct LoadedCheckpoint {
  StartPoint::Kind kind = StartPoint::Kind::resume;
  std::filesystem::path path;  // this and the texts: on rank 0
  std::string reason;
  TrainingProgress progress;  // that of a fresh run where the weights alone were loaded
  /// What differs from when the checkpoint was saved, "threads: was 2, is 1"; empty when the bits
  /// go on as if the run had never stopped.
  std::vector<std::string> differences;
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
  /// On rank 0: the run that started this lineage of checkpoints.
  const std::string& first_run_id() const {
    return start_.first_run_id.empty() ? run_id_ : start_.first_run_id;
  }

  /// Everything that can be known before the buffers of the store are allocated; collective. Opens
  /// trainer.save_dir and sees that two checkpoints can be written there, chooses where the run
  /// starts (start_point.h), and compares that checkpoint's model with ours (saved_job.h).
  Result<> prepare();
  /// After prepare(): whether load() gives every parameter its values.
  bool loads_all_values() const { return loads_all_values_; }

  /// Saves and commits; collective. The same outcome on every rank. The best checkpoint is in
  /// save_dir/best, the only one there, and does not count among those that keep_last keeps.
  enum class Series { regular, best };
  Result<SavedCheckpoint> save(const TrainingProgress& progress, Series series = Series::regular);

  /// After prepare(): loads the checkpoint that the run starts from, if there is one; collective.
  Result<std::optional<LoadedCheckpoint>> load();

 private:
  Result<> open_save_dir();
  Result<> choose();
  Result<SavedCheckpoint> write(const TrainingProgress& progress, Series series);
  Result<std::optional<LoadedCheckpoint>> read();

  const config::JobConfig& job_;
  const BitFacts& facts_;
  ParameterStore& store_;
  Communicator& communicator_;
  RunTokenizer tokenizer_;
  std::string run_id_;
  StartPoint start_;  // rank 0
  bool loads_all_values_ = false;
  std::optional<CheckpointStore> folder_, best_;  // rank 0; best_ from its first save on
  std::filesystem::path notes_from_;  // rank 0: the checkpoint that may have import notes
};

}  // namespace sortie::trainer
