#include "trainer/state/checkpoint_state.h"

#include <fmt/core.h>

#include <cmath>

#include "common/config/load.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace {

void record_outliers(const std::string& name, const OutlierState& state, Manifest& manifest) {
  if (state.count == 0) return;
  manifest.scalars[name + ".mean"] = state.mean;
  manifest.scalars[name + ".variance"] = state.variance;
  manifest.counters[name + ".count"] = state.count;
}

template <class T>
T value_of(const std::map<std::string, T>& values, const std::string& name, T otherwise) {
  const auto found = values.find(name);
  return found == values.end() ? otherwise : found->second;
}

OutlierState recorded_outliers(const std::string& name, const Manifest& manifest) {
  return {value_of(manifest.scalars, name + ".mean", 0.0),
          value_of(manifest.scalars, name + ".variance", 0.0),
          value_of<std::int64_t>(manifest.counters, name + ".count", 0)};
}

}  // namespace

void record_progress(const TrainingProgress& progress, Manifest& manifest) {
  manifest.step = progress.step;
  manifest.consumed_samples = static_cast<std::uint64_t>(progress.consumed_samples);
  manifest.counters["updates"] = progress.updates;
  manifest.counters["consecutive_skips"] = progress.consecutive_skips;
  record_outliers("outliers.loss", progress.losses, manifest);
  record_outliers("outliers.gradient_norm", progress.gradient_norms, manifest);
  if (std::isfinite(progress.best_validation_loss)) {
    manifest.scalars["best_validation_loss"] = progress.best_validation_loss;
    manifest.counters["best_validation_step"] = progress.best_validation_step;
  }
  if (std::isfinite(progress.loss)) manifest.scalars["loss"] = progress.loss;
  if (std::isfinite(progress.validation_loss)) {
    manifest.scalars["validation_loss"] = progress.validation_loss;
    manifest.counters["validation_step"] = progress.validation_step;
  }
}

TrainingProgress recorded_progress(const Manifest& manifest) {
  TrainingProgress progress;
  progress.step = manifest.step;
  progress.consumed_samples = static_cast<std::int64_t>(manifest.consumed_samples);
  progress.updates = value_of<std::int64_t>(manifest.counters, "updates", 0);
  progress.consecutive_skips = value_of<std::int64_t>(manifest.counters, "consecutive_skips", 0);
  progress.losses = recorded_outliers("outliers.loss", manifest);
  progress.gradient_norms = recorded_outliers("outliers.gradient_norm", manifest);
  progress.best_validation_loss =
      value_of(manifest.scalars, "best_validation_loss", progress.best_validation_loss);
  progress.best_validation_step =
      value_of<std::int64_t>(manifest.counters, "best_validation_step", 0);
  progress.loss = value_of(manifest.scalars, "loss", progress.loss);
  progress.validation_loss =
      value_of(manifest.scalars, "validation_loss", progress.validation_loss);
  progress.validation_step = value_of<std::int64_t>(manifest.counters, "validation_step", 0);
  return progress;
}

std::string training_digest(config::JobConfig job) {
  job.runner = {};
  job.logger = {};
  job.profiler = {};
  auto& schedule = job.learning_rate_scheduler;
  if (schedule.learning_rate_decay_iters == 0)
    schedule.learning_rate_decay_iters = job.trainer.train_iterations;
  const std::int64_t seed = job.trainer.seed;
  job.trainer = {};
  job.trainer.seed = seed;
  return sha256_hex(config::to_toml(job));
}

std::map<std::string, std::string> depends_on(const BitFacts& facts, const config::JobConfig& job) {
  return {{"isa", facts.isa},
          {"libraries", facts.libraries},
          {"build", facts.build},
          {"threads", fmt::format("{}", facts.threads)},
          {"ranks", fmt::format("{}", facts.world_size)},
          {"precision", facts.precision},
          {"training config", training_digest(job)}};
}

}  // namespace sortie::trainer
