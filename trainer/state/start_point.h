// Where a run starts: which checkpoint it goes on from, decided from what lies in the folders of
// [trainer] before anything is loaded.
//
//   1. the newest checkpoint in trainer.save_dir: the run goes on. Where load_dir or
//      load_weights_from is set too, that checkpoint must come from there, directly or as a
//      checkpoint of the same run
//   2. else the checkpoint of trainer.load_dir: with all its state, as a run of its own (a fork)
//   3. else the weights of trainer.load_weights_from
//   4. else the seed
//
// One save_dir holds one lineage (trainer/checkpoint/lineage.h). So the same command after a crash
// always goes on, and a run that goes back to an earlier step needs another save_dir.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "trainer/checkpoint/manifest.h"

namespace sortie::trainer {

struct StartPoint {
  enum class Kind {
    seed,
    weights,  // of a checkpoint, without its progress
    fork,     // another run's checkpoint with its progress; new checkpoints are a new lineage
    resume,   // this run's newest checkpoint
  };
  Kind kind = Kind::seed;
  std::filesystem::path folder;      // of the checkpoint; its bytes were compared with its hashes
  std::optional<Manifest> manifest;  // of it
  std::string reason;                // for people: "the newest in trainer.save_dir"

  /// What checkpoints of this run are to record.
  std::string lineage;
  std::optional<Manifest::Origin> origin;
  std::string first_run_id;  // empty = this run
};

/// ErrorCode::checkpoint where a named folder has no usable checkpoint and none in save_dir takes
/// its place; ErrorCode::config where load_dir or load_weights_from and save_dir contradict each
/// other, or save_dir has checkpoints of several runs. Damaged checkpoints are passed over with a
/// warning.
Result<StartPoint> choose_start(const config::TrainerConfig& config);

}  // namespace sortie::trainer
