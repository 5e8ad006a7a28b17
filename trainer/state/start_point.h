// Decides where a run starts: which checkpoint it continues from, judging by the folders of
// [trainer] before anything is loaded.
//
//   1. the newest checkpoint in trainer.save_dir, or in its folder of the lowest validation loss if
//      that one is newer: the run continues. If load_dir or load_weights_from is set too, that
//      checkpoint must originate from there, directly or as a checkpoint of the same run
//   2. otherwise the checkpoint of trainer.load_dir, with all its state, as a new run (a fork)
//   3. otherwise the weights of trainer.load_weights_from
//   4. otherwise the seed
//
// One save_dir holds one lineage (trainer/checkpoint/lineage.h). So the same command after a crash
// always continues the run, and a run that restarts from an earlier step needs another save_dir.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "trainer/checkpoint/manifest.h"

namespace sortie::trainer {

/// Counter of a manifest: StartPoint::named_step of the run that saved it.
inline constexpr const char* kNamedStep = "named_step";

struct StartPoint {
  enum class Kind {
    seed,
    weights,  // of a checkpoint, without its progress
    fork,     // another run's checkpoint with its progress; new checkpoints are a new lineage
    resume,   // this run's newest checkpoint
  };
  Kind kind = Kind::seed;
  std::filesystem::path folder;      // of the checkpoint, whose bytes were verified by hash
  std::filesystem::path save_dir;    // of a resume: the save folder that has it
  std::optional<Manifest> manifest;  // of the checkpoint
  std::string reason;                // for messages: "the newest in trainer.save_dir"

  /// Values that checkpoints of this run record.
  std::string lineage;
  std::optional<Manifest::Origin> origin;
  /// Step of this run's own checkpoint that load_dir or load_weights_from named, so that the same
  /// command still works after a crash; 0 = none.
  std::int64_t named_step = 0;
  std::string first_run_id;  // empty = this run
};

/// ErrorCode::checkpoint if a named folder has no usable checkpoint and save_dir has none to use
/// instead, or if all checkpoints in save_dir are damaged; ErrorCode::config if load_dir or
/// load_weights_from and save_dir contradict each other, save_dir has checkpoints of several runs,
/// or a run would begin at step 0 because its hosts got `site=NAME` or lost it. Other damaged
/// checkpoints are skipped with a warning.
Result<StartPoint> choose_start(const config::TrainerConfig& config);

}  // namespace sortie::trainer
