// Saves and loads the state of a training run; README.md describes the sequence of a save.
//
// Ranks that share the folder of checkpoints each write a part and each read what they need. If
// they do not share it, rank 0 reads and writes, and the others receive their state through the
// communicator.
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

/// Healthy steps after a skipped spike of the loss during which checkpoints are suspect.
inline constexpr std::int64_t kSuspectSteps = 10;

/// Facts besides its config that the bits of a training run depend on; a resume reports which have
/// changed.
struct BitFacts {
  std::string isa, build;
  std::string onednn, mpi, libm;  // versions of the loaded libraries
  std::string data;               // fingerprint of the training samples
  std::string order;              // of the samples, if more than the seed decides it
  std::int64_t threads = 1, world_size = 1;
  std::string layout;  // "" = only data parallelism, otherwise "tensor 2, pipeline 4"
  std::string precision;
  std::string gpu, gpu_libraries;  // "" = it computes on the CPU
  std::string sum_settings;        // Communicator::settings()
};

struct SavedCheckpoint {
  std::filesystem::path path;
  std::int64_t bytes = 0;      // of all ranks
  double seconds = 0.0;        // from the start of the save to the commit
  double stall_seconds = 0.0;  // how much of that training waited
  bool suspect = false;        // saved soon after a spike of the loss
  std::string warning;         // old checkpoints that could not be removed; this one is committed
};

struct LoadedCheckpoint {
  StartPoint::Kind kind = StartPoint::Kind::resume;
  std::filesystem::path path;  // on rank 0 only, like the texts
  std::string reason;
  TrainingProgress progress;  // that of a fresh run if only the weights were loaded
  /// Differences from the run that saved the checkpoint, "threads: was 2, is 1"; empty if the bits
  /// are as if the run had never stopped.
  std::vector<std::string> differences;
};

class Checkpointer {
 public:
  /// All referenced objects must outlive it.
  Checkpointer(const config::JobConfig& job, const BitFacts& facts, ParameterStore& store,
               const Layout& layout, ExecutionContext& context);
  /// Waits for what this rank writes. If several ranks write, call finish() first: otherwise a save
  /// that is under way is not committed.
  ~Checkpointer() = default;

  /// Rank 0: sets the tokenizer, which every checkpoint then contains. A checkpoint of another
  /// tokenizer is not loaded.
  void set_tokenizer(RunTokenizer tokenizer) { tokenizer_ = std::move(tokenizer); }
  /// Additional state that only this rank has. to_save() returns what to save, at the time of a
  /// save; to_load() where to load it; pieces that the checkpoint lacks are skipped. `most`: the
  /// maximum number of elements. Call set_extras() before prepare(), or count_extras() after both.
  struct Extras {
    std::function<std::vector<ExtraPiece>()> to_save, to_load;
    std::int64_t most = 0;
  };
  void set_extras(Extras extras) { extras_ = std::move(extras); }
  /// Sets the run, which every manifest records, and the attempt. Together they identify the owner
  /// of trainer.save_dir.
  void set_claimant(Claimant claimant) { claimant_ = std::move(claimant); }
  /// Sets the name of this rank's host, which ranks of other hosts do not have.
  void set_host(std::string host) { host_ = std::move(host); }
  /// Sets the folder of this host for checkpoints in memory, used if
  /// trainer.memory_checkpoint_interval is set; empty = the job was started without a holder.
  void set_memory_folder(std::filesystem::path folder) { memory_folder_ = std::move(folder); }
  /// After prepare(): the run that started this lineage of checkpoints.
  const std::string& first_run_id() const {
    return start_.first_run_id.empty() ? claimant_.run_id : start_.first_run_id;
  }

  /// Does everything that is possible before the buffers of the store are allocated; collective.
  /// Opens trainer.save_dir, checks that it has room for two checkpoints and whether all ranks can
  /// write to it (they must, if no rank has the whole state), chooses where the run starts
  /// (start_point.h), and compares that checkpoint's model with ours (saved_job.h).
  Result<> prepare();
  /// If set_extras() was called after prepare(): counts them, too, in the size of a checkpoint, and
  /// checks that trainer.save_dir has room for them; collective.
  Result<> count_extras();
  /// After prepare(): whether load() sets the values of all parameters.
  bool loads_all_values() const { return loads_all_values_; }
  /// Loads the checkpoint that the run starts from; nullopt if there is none. Call after prepare()
  /// and after the allocation of the store's buffers; collective.
  Result<std::optional<LoadedCheckpoint>> load();
  /// After load(), on rank 0: how a GPU computed the products of the run that continues here; empty
  /// if it starts from the seed or from weights only, or did not compute on a GPU.
  std::string saved_product_choices() const;
  /// After load(): allocates the memory of background saves if the config asks for any. If a host
  /// does not have enough, training waits for its saves, and the text says so; otherwise the text
  /// is empty. Collective.
  std::string reserve_snapshot();
  /// After load(): allocates the memory of checkpoints in memory, if the config asks for any, and
  /// removes those that the run does not continue from; collective.
  Result<> reserve_memory();
  /// After load(), on rank 0: notes about the start, one line each: skipped checkpoints in memory,
  /// conversations that do not suit the model.
  std::vector<std::string> take_start_notes() { return std::exchange(start_notes_, {}); }

  /// After prepare(), on rank 0: starts to verify all checkpoints in the background, if
  /// trainer.scrub_interval is set.
  void start_scrubbing();
  /// Rank 0: what the verification has found since the last call.
  std::vector<std::string> take_scrub_notes() {
    return scrubber_ ? scrubber_->take_notes() : std::vector<std::string>();
  }
  /// Rank 0: the step of a damaged best checkpoint that the verification has moved away since the
  /// last call; 0 = none.
  std::int64_t take_moved_best() { return scrubber_ ? scrubber_->take_moved_best() : 0; }

  /// After prepare(): the rollbacks of the run so far, the same on every rank.
  const std::vector<Rollback>& rollbacks() const { return rollbacks_; }

  /// How a run rolls back to an earlier step.
  struct RollbackOrder {
    std::int64_t from = 0;    // the step that was just done
    std::int64_t newest = 0;  // the newest step to roll back to
    /// The sample to continue with; none: those that come after the checkpoint.
    std::optional<std::int64_t> next_sample;
    std::string reason;
  };
  struct RolledBack {
    TrainingProgress progress;
    Rollback rollback;
    std::filesystem::path path;  // of the checkpoint
  };
  /// Loads the newest regular checkpoint that the order allows and that is not suspect, or the
  /// oldest one if samples are skipped and none is old enough. Records the rollback in
  /// save_dir/rollbacks.json, and removes the checkpoints of later steps, also from save_dir/best.
  /// No save may be under way. Collective; the same result on every rank. ErrorCode::diverged if
  /// there is no such checkpoint, or if the run rolls back too often without getting past a step.
  Result<RolledBack> roll_back(const RollbackOrder& order);

  /// Saves the state of this rank after a collective has failed, in whatever thread. The state must
  /// be complete. Calls no collective. Saves only if save_dir is that of rank 0 and has no
  /// checkpoint of this step or a later one. If several ranks try for one step, only the first
  /// succeeds. Returns nullopt if there was nothing to save.
  Result<std::optional<SavedCheckpoint>> save_alone(const TrainingProgress& progress);

  /// Rank 0: returns the lowest validation loss that save_dir/best has a checkpoint of: one of this
  /// run, and not of a course that a rollback has abandoned. Infinite if there is none. load() and
  /// roll_back() return this as the best so far if the config keeps the best, because a regular
  /// checkpoint also records losses whose checkpoint was never committed or has been abandoned
  /// since.
  Result<BestValidation> kept_best() const;

  /// Rank 0: ErrorCode::checkpoint if another process owns save_dir by now.
  Result<> check_not_taken() const { return folder_ ? folder_->check_not_taken() : Result<>(); }

  /// The best checkpoint is in save_dir/best, the only one there; keep_last does not count it.
  enum class Series { regular, best };
  struct Outcome {
    std::int64_t step = 0;
    Series series = Series::regular;
    Result<SavedCheckpoint> saved;  // details on rank 0 only
  };

  /// Saves and commits the current state in the background, once into each series: the state may
  /// change as soon as this returns. Waits for an earlier save first. Without memory for a copy it
  /// returns when everything is committed. Collective.
  void begin_save(const TrainingProgress& progress, const std::vector<Series>& series);
  /// Whether this rank has written its part of a save that all ranks write together. Once that is
  /// true on every rank, each must call commit_written(), which is collective: rank 0 then commits
  /// in the background.
  bool has_written() const;
  void commit_written();
  /// Returns the saves that have ended since the last call. Only rank 0 gets all of them.
  std::vector<Outcome> take_outcomes();
  /// Waits until no save is under way; collective. Returns the outcomes that take_outcomes() has
  /// not returned; those of the last save are the same on every rank.
  std::vector<Outcome> finish();
  /// Saves the current state without a background copy and waits for the commit, after an earlier
  /// save; collective. Succeeds or fails identically on every rank.
  Result<SavedCheckpoint> save(const TrainingProgress& progress, Series series = Series::regular);

  /// Copies the current state to host memory; hashes and seals it in the background
  /// (MemoryCheckpoints).
  void begin_memory(const TrainingProgress& progress);
  /// Waits for this rank's part of that; returns false if it failed. All ranks exchange the result
  /// before the next step's update, so that no more than the interval is lost.
  bool memory_sealed() { return !memory_ || memory_->sealed(); }
  /// Call after that exchange: returns the checkpoint that is complete now.
  std::optional<MemoryCheckpoints::Snapshot> settle_memory(bool by_all);

  std::uint64_t snapshot_bytes() const { return snapshot_.bytes(); }
  std::uint64_t memory_bytes() const { return memory_ ? memory_->bytes() : 0; }
  /// Whether all ranks write into trainer.save_dir; known after prepare(). For tests.
  bool shares_folder() const { return shared_; }

 private:
  using Clock = std::chrono::steady_clock;

  /// A save that has begun. Its thread uses it until the save is done.
  struct Flight {
    std::int64_t step = 0;
    std::vector<Series> series;
    std::vector<Result<std::filesystem::path>> folders;  // being written; by series
    std::unique_ptr<StateView> state;         // set if the pieces are those of the live state
    Snapshot copy;                            // of device values that are in no other copy
    Result<> on_host;                         // whether they could be copied
    std::vector<std::vector<float>> momenta;  // of other members, if rank 0 writes for them
    std::vector<PieceToWrite> pieces;         // of this rank
    Manifest manifest;                        // rank 0
    std::int64_t bytes = 0;                   // of all ranks
    Clock::time_point begin;
    double stall_seconds = 0.0;
    SaveThread::Priority priority = SaveThread::Priority::normal;
    bool committing = false;                   // the reports of all ranks have arrived
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
  /// Whether every rank has the whole state.
  bool has_all() const { return has_weights() && members() == 1; }
  bool has_weights() const { return layout_.only_data() && !store_.sharded(); }
  /// The number of ranks that each have their own momentum; 1 if replicas share one state.
  int members() const { return store_.own_momentum() ? store_.own_momentum()->count : 1; }
  const char* state_name() const {
    return layout_.only_data() ? "state of the optimizer" : "model";
  }
  bool owns(const Parameter& parameter) const;
  std::uint64_t count_state_bytes() const;
  std::vector<StatePiece> own_share(const std::vector<StatePiece>& all) const;
  /// The piece of another member's momentum on the host, with memory for its values in `room`.
  static StatePiece momentum_of(int member, const StatePiece& piece,
                                std::vector<std::vector<float>>& room);
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
  std::string host_;
  Extras extras_;
  StartPoint start_;  // rank 0; on other ranks only what share_start() sends
  std::vector<Rollback> rollbacks_;
  std::string token_;              // of rank 0's claim to save_dir; empty = none
  std::uint64_t state_bytes_ = 0;  // of a checkpoint
  std::uint64_t saves_ = 0;        // rank 0: checkpoints for which save_dir must have room
  bool loads_all_values_ = false;
  bool shared_ = false;  // all ranks write to save_dir
  std::int64_t ranks_of_host_ = 1;
  std::optional<CheckpointStore> folder_, best_;  // rank 0; best_ from its first save on
  std::filesystem::path notes_from_;    // rank 0: the checkpoint that may have import notes
  std::unique_ptr<Scrubber> scrubber_;  // rank 0
  std::filesystem::path memory_folder_;
  std::unique_ptr<MemoryCheckpoints> memory_;  // only if the config asks for it
  bool from_memory_ = false;                   // the run continues from a checkpoint in memory
  std::vector<std::string> start_notes_;
  Snapshot snapshot_;
  std::optional<Flight> flight_;  // on every rank until finish(), even if ended on rank 0
  std::vector<Outcome> ended_;    // from begin_save() or save(), to be returned next
  SaveThread thread_;  // the last member: its destructor waits before others are destroyed
};

}  // namespace sortie::trainer
