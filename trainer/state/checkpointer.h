// The state of a training run to and from checkpoints; README.md has the order of a save.
//
// Ranks that share the folder of checkpoints each write a part and each read what they need. Where
// they do not, rank 0 reads and writes, and the others receive their state over the communicator.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/shard_file.h"
#include "trainer/checkpoint/store.h"
#include "trainer/nn/parameter_store.h"
#include "trainer/parallel/layout.h"
#include "trainer/samples/tokenizer_agreement.h"
#include "trainer/state/extra_pieces.h"
#include "trainer/state/memory_checkpoints.h"
#include "trainer/state/save_thread.h"
#include "trainer/state/scrubber.h"
#include "trainer/state/snapshot.h"
#include "trainer/state/start_point.h"
#include "trainer/state/state_view.h"
#include "trainer/state/training_progress.h"

namespace sortie::trainer {

/// Healthy steps after a spike of the loss that was skipped; checkpoints until then are suspect.
inline constexpr std::int64_t kSuspectSteps = 10;

/// What the bits of a training run depend on besides its config; a resume under others is
/// announced.
struct BitFacts {
  std::string isa, build;
  std::string onednn, mpi, libm;  // versions of the libraries that run
  std::string data;               // fingerprint of the training samples
  std::string order;              // of the samples, where more than the seed decides it
  std::int64_t threads = 1, world_size = 1;
  std::string layout;  // "" = data parallelism alone, else "tensor 2, pipeline 4"
  std::string precision;
  std::string gpu, gpu_libraries;  // "" = it computes on the CPU
};

struct SavedCheckpoint {
  std::filesystem::path path;
  std::int64_t bytes = 0;      // of all ranks
  double seconds = 0.0;        // from the state that it holds to the commit
  double stall_seconds = 0.0;  // of them, training stood still
  std::string warning;         // old checkpoints that could not be removed; this one is committed
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
               const Layout& layout, ExecutionContext& context);
  /// Waits for what this rank writes. Where several ranks write, call finish() before: without it a
  /// save that is under way is not committed.
  ~Checkpointer() = default;

  /// What every checkpoint is to hold; a checkpoint of another tokenizer is not loaded. Rank 0.
  void set_tokenizer(RunTokenizer tokenizer) { tokenizer_ = std::move(tokenizer); }
  /// What this rank alone has to save beside weights and moments, as of a save, and to load, as far
  /// as the checkpoint has it; `most` elements at any time. Before prepare().
  struct Extras {
    std::function<std::vector<ExtraPiece>()> to_save, to_load;
    std::int64_t most = 0;
  };
  void set_extras(Extras extras) { extras_ = std::move(extras); }
  /// The run is recorded in every manifest; with the attempt it is who claims trainer.save_dir.
  void set_claimant(Claimant claimant) { claimant_ = std::move(claimant); }
  /// The folder of this host for checkpoints in memory, where trainer.memory_checkpoint_interval
  /// asks for them; empty = the job was started without a holder.
  void set_memory_folder(std::filesystem::path folder) { memory_folder_ = std::move(folder); }
  /// On rank 0: the run that started this lineage of checkpoints.
  const std::string& first_run_id() const {
    return start_.first_run_id.empty() ? claimant_.run_id : start_.first_run_id;
  }

  /// Everything that can be known before the buffers of the store are allocated; collective. Opens
  /// trainer.save_dir and sees that two checkpoints can be written there and whether all ranks can
  /// (they must, where no rank has the whole state),
  /// chooses where the run starts (start_point.h), and compares that checkpoint's model with ours
  /// (saved_job.h).
  Result<> prepare();
  /// After prepare(): whether load() gives every parameter its values.
  bool loads_all_values() const { return loads_all_values_; }
  /// After prepare(), and the buffers of the store: loads the checkpoint that the run starts from,
  /// if there is one; collective.
  Result<std::optional<LoadedCheckpoint>> load();
  /// After load(), on rank 0: how a GPU computed the products of the run that goes on here; empty
  /// where it starts from weights alone, or did not compute on a GPU.
  std::string saved_product_choices() const;
  /// After load(): takes the memory of background saves where the config asks for any. Where this
  /// host has not enough, saves stop training and the text says so, else it is empty; collective.
  std::string reserve_snapshot();
  /// After load(): takes the memory of checkpoints in memory, where the config asks for any, and
  /// drops those that the run does not go on from; collective.
  Result<> reserve_memory();
  /// Rank 0, after load(): what people should know of the start, one line each: checkpoints in
  /// memory that were passed over, conversations that do not suit the model.
  std::vector<std::string> take_start_notes() { return std::exchange(start_notes_, {}); }

  /// Rank 0, after prepare(): checks all checkpoints beside training, where trainer.scrub_interval
  /// says so.
  void start_scrubbing();
  /// Rank 0: what that has found since the last call.
  std::vector<std::string> take_scrub_notes() {
    return scrubber_ ? scrubber_->take_notes() : std::vector<std::string>();
  }

  /// Of the run so far, after prepare(): alike on every rank.
  const std::vector<Rollback>& rollbacks() const { return rollbacks_; }

  /// How a run goes back to an earlier step.
  struct RollbackOrder {
    std::int64_t from = 0;    // the step that was just taken
    std::int64_t newest = 0;  // go back to this step, or an earlier one
    /// The sample to go on with; none: those that come after the checkpoint.
    std::optional<std::int64_t> next_sample;
    std::string reason;
  };
  struct RolledBack {
    TrainingProgress progress;
    Rollback rollback;
    std::filesystem::path path;  // of the checkpoint
  };
  /// Loads the newest regular checkpoint that the order allows and that is not suspect, records the
  /// rollback in save_dir/rollbacks.json, and removes the checkpoints of later steps, also from
  /// save_dir/best. No save may be under way. Collective; alike on every rank. ErrorCode::diverged
  /// where there is no such checkpoint, or the run comes back too often without getting past a
  /// step.
  Result<RolledBack> roll_back(const RollbackOrder& order);

  /// After a collective has failed, in whatever thread it was: saves the state of this rank, which
  /// must be whole, as far as save_dir is the one of rank 0 and has no checkpoint of that step yet.
  /// Of several ranks that do so for one step only the first succeeds. No collective is called.
  /// Nothing where nothing had to be saved.
  Result<std::optional<SavedCheckpoint>> save_alone(const TrainingProgress& progress);

  /// Rank 0: the lowest validation loss that save_dir/best has a checkpoint of: one of this run,
  /// and of no course that a rollback has left. Infinite where there is none. This is what load()
  /// and roll_back() give as the best so far, where the config keeps the best; a regular checkpoint
  /// also knows of losses whose checkpoint was never committed, or has been left since.
  Result<BestValidation> kept_best() const;

  /// Rank 0: whether this process may still commit to save_dir.
  Result<> check_owner() const { return folder_ ? folder_->check_owner() : Result<>(); }

  /// The best checkpoint is in save_dir/best, the only one there, and does not count among those
  /// that keep_last keeps.
  enum class Series { regular, best };
  struct Outcome {
    std::int64_t step = 0;
    Series series = Series::regular;
    Result<SavedCheckpoint> saved;  // details on rank 0 alone
  };

  /// Saves and commits the state of now, once into each series, beside training: the state may
  /// change as soon as this returns. Waits for an earlier save first. Without memory for a copy it
  /// returns when all is committed. Collective.
  void begin_save(const TrainingProgress& progress, const std::vector<Series>& series);
  /// This rank has written its part of a save that the ranks write together. When every rank says
  /// so, each of them calls commit_written(), which is collective: rank 0 commits beside training.
  bool has_written() const;
  void commit_written();
  /// Saves that have ended since the last call: all of them on rank 0.
  std::vector<Outcome> take_outcomes();
  /// Waits until no save is under way; collective. What take_outcomes() has not given, alike on
  /// every rank.
  std::vector<Outcome> finish();
  /// Saves the state where it lies and waits for the commit, after an earlier save; collective.
  /// Succeeds or fails alike on every rank.
  Result<SavedCheckpoint> save(const TrainingProgress& progress, Series series = Series::regular);

  /// Copies the state of now into the memory of the hosts, beside training (MemoryCheckpoints).
  void begin_memory(const TrainingProgress& progress);
  /// Waits for this rank's part of it; false where it failed. Told to all ranks before the next
  /// step's update: so no more than the interval is lost.
  bool memory_sealed() { return !memory_ || memory_->sealed(); }
  /// After all ranks have told: the checkpoint that is complete now.
  std::optional<MemoryCheckpoints::Snapshot> settle_memory(bool by_all);

  std::uint64_t snapshot_bytes() const { return snapshot_.bytes(); }
  std::uint64_t memory_bytes() const { return memory_ ? memory_->bytes() : 0; }
  /// All ranks write into trainer.save_dir; known after prepare().
  bool shares_folder() const { return shared_; }

 private:
  using Clock = std::chrono::steady_clock;

  /// A save that has begun. The thread has it until it is done.
  struct Flight {
    std::int64_t step = 0;
    std::vector<Series> series;
    std::vector<Result<std::filesystem::path>> folders;  // being written, by series
    std::unique_ptr<StateView> state;         // where its pieces are those of the live state
    Snapshot copy;                            // of a device's values, where there is no other
    Result<> on_host;                         // that they could be copied
    std::vector<std::vector<float>> momenta;  // of other members, where rank 0 writes for them
    std::vector<PieceToWrite> pieces;         // of this rank
    Manifest manifest;                        // rank 0
    std::int64_t bytes = 0;                   // of all ranks
    Clock::time_point begin;
    double stall_seconds = 0.0;
    SaveThread::Priority priority = SaveThread::Priority::normal;
    bool committing = false;                   // reports of all ranks are in
    std::vector<Result<std::string>> reports;  // of this rank, by series
    std::vector<Outcome> outcomes;             // rank 0
  };

  Result<> open_save_dir();
  Result<> choose();
  Result<std::optional<LoadedCheckpoint>> describe();
  Result<> share_start();
  Result<> choose_from_memory();
  std::string judge_memory(const Manifest& manifest) const;
  Result<> read_state(const std::filesystem::path& folder, bool weights_alone);
  Result<> load_state(const std::filesystem::path& folder, bool weights_alone);
  bool keeps_best() const;
  bool is_of_this_run(const Manifest& manifest) const;
  Result<BestValidation> settle_best(const BestValidation& recorded);
  Result<CheckpointEntry> find_target(const RollbackOrder& order) const;
  Result<RolledBack> plan_rollback(const RollbackOrder& order, std::vector<Rollback>& rollbacks);
  std::size_t writers() const {
    return shared_ ? static_cast<std::size_t>(communicator_.size()) : 1;
  }
  bool writes() const { return shared_ || communicator_.rank() == 0; }
  bool saves_between() const;
  double cores_for_saves() const;
  /// Whether every rank has all of the state.
  bool has_all() const { return has_weights() && members() == 1; }
  bool has_weights() const { return layout_.only_data() && !store_.sharded(); }
  /// Ranks that each have a momentum of their own; 1 where replicas have one state.
  int members() const { return store_.own_momentum() ? store_.own_momentum()->count : 1; }
  const char* state_name() const {
    return layout_.only_data() ? "state of the optimizer" : "model";
  }
  bool owns(const Parameter& parameter) const;
  std::uint64_t count_state_bytes() const;
  std::vector<StatePiece> own_share(const std::vector<StatePiece>& all) const;
  std::vector<StatePiece> gather_momenta(const std::vector<StatePiece>& all,
                                         std::vector<std::vector<float>>& room);
  Result<std::vector<StatePiece>> read_momenta(const std::filesystem::path& folder,
                                               std::vector<std::vector<float>>& room);

  enum class Source { live, snapshot };
  bool launch(const TrainingProgress& progress, const std::vector<Series>& series, Source wanted);
  std::vector<Outcome> take_from_flight();
  Result<CheckpointStore*> store_of(Series series);
  Manifest make_manifest(const TrainingProgress& progress) const;
  void write_parts(Flight& flight);
  Result<std::string> write_part(const Flight& flight, const std::filesystem::path& folder);
  void commit(Flight& flight, const std::vector<std::string>& reports);
  Result<SavedCheckpoint> commit_one(Flight& flight, std::size_t index,
                                     const std::vector<std::vector<Result<std::string>>>& reports);

  const config::JobConfig& job_;
  const BitFacts& facts_;
  ParameterStore& store_;
  const Layout& layout_;
  Communicator& communicator_;  // of all ranks
  ExecutionContext& context_;
  RunTokenizer tokenizer_;
  Claimant claimant_;
  Extras extras_;
  StartPoint start_;  // rank 0; of other ranks what share_start() tells them
  std::vector<Rollback> rollbacks_;
  std::string token_;              // of rank 0's claim of save_dir; empty = none
  std::uint64_t state_bytes_ = 0;  // of a checkpoint
  bool loads_all_values_ = false;
  bool shared_ = false;  // all ranks write to save_dir
  std::int64_t ranks_of_host_ = 1;
  std::optional<CheckpointStore> folder_, best_;  // rank 0; best_ from its first save on
  std::filesystem::path notes_from_;    // rank 0: the checkpoint that may have import notes
  std::unique_ptr<Scrubber> scrubber_;  // rank 0
  std::filesystem::path memory_folder_;
  std::unique_ptr<MemoryCheckpoints> memory_;  // where the config asks for it
  bool from_memory_ = false;                   // the run goes on from there
  std::vector<std::string> start_notes_;
  Snapshot snapshot_;
  std::optional<Flight> flight_;  // on every rank until finish(), though rank 0 alone has ended it
  std::vector<Outcome> ended_;    // of begin_save(), for the next call
  SaveThread thread_;             // the last member: it is waited for before others go
};

}  // namespace sortie::trainer
