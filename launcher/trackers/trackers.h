// Trackers: the numbers of a run for TensorBoard and Weights & Biases, in its folder. A tracker
// that fails is left alone from then on; the run goes on without it.
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
  /// `folder` is that of the run: <state>/runs/<id>.
  Trackers(std::filesystem::path folder, bool tensorboard)
      : folder_(std::move(folder)), tensorboard_enabled_(tensorboard) {}
  /// From now on W&B too, if the config of the job asks for it.
  void enable_wandb(const config::JobConfig& job);

  /// An event of the trainer; of its numbers those of steps and validations are told.
  void event(const nlohmann::json& event, double now);
  void finish(int exit_code);

  /// The first thing that failed.
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
