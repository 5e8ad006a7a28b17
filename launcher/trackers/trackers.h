// Trackers: writes the numbers of a run for TensorBoard and Weights & Biases, into its folder. A
// tracker whose file can not be opened is turned off, and so is W&B after a failed write. The run
// continues without it.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "common/config/schema.h"
#include "launcher/trackers/tensorboard.h"
#include "launcher/trackers/wandb_run.h"

namespace sortie::launcher {

class Trackers {
 public:
  Trackers() = default;
  /// `folder`: the run folder <state>/runs/<id>.
  Trackers(std::filesystem::path folder, bool tensorboard)
      : folder_(std::move(folder)), tensorboard_enabled_(tensorboard) {}
  /// Enables W&B if the config of the job does.
  void enable_wandb(const config::JobConfig& job);

  /// Handles an event of the trainer: records the numbers of the events step, eval and round.
  void event(const nlohmann::json& event, double now);
  void finish(int exit_code);

  /// The first error, if any.
  const std::optional<Error>& trouble() const { return trouble_; }

 private:
  void note(Error error);
  void to_tensorboard(std::int64_t step, double now, const std::map<std::string, double>& values);
  void to_wandb(std::int64_t step, double now, const std::map<std::string, double>& values);
  void open_wandb(std::string first_run, double now);

  std::filesystem::path folder_;
  bool tensorboard_enabled_ = false;
  std::optional<TensorBoardWriter> tensorboard_;
  std::optional<WandbSettings> wandb_settings_;  // unset = off
  std::optional<WandbRun> wandb_;
  std::optional<Error> trouble_;
};

}  // namespace sortie::launcher
