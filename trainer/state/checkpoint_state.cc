#include "trainer/state/checkpoint_state.h"

#include <fmt/core.h>

#include <cmath>

#include "common/config/load.h"
#include "trainer/state/saved_job.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace {

constexpr const char* kBuild = "build";  // names in depends_on
constexpr const char* kData = "training data";
constexpr const char* kDevice = "device";
constexpr const char* kSumSettings = "settings of NCCL";

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

/// Renames facts of older versions, which also recorded a hash of the config instead of its keys.
std::map<std::string, std::string> current_names(std::map<std::string, std::string> facts) {
  constexpr std::string_view kOneDnn = "oneDNN ";
  facts.erase("training config");
  if (auto old = facts.extract("libraries"); old && old.mapped().starts_with(kOneDnn))
    facts.emplace("oneDNN", old.mapped().substr(kOneDnn.size()));
  if (auto old = facts.extract("isa")) facts.emplace("instruction set", old.mapped());
  return facts;
}

}  // namespace

void record_progress(const TrainingProgress& progress, Manifest& manifest) {
  manifest.step = progress.step;
  manifest.consumed_samples = static_cast<std::uint64_t>(progress.consumed_samples);
  manifest.counters["updates"] = progress.updates;
  manifest.counters["consecutive_skips"] = progress.consecutive_skips;
  if (progress.suspect_steps > 0) manifest.counters["suspect_steps"] = progress.suspect_steps;
  manifest.suspect = progress.suspect_steps > 0;
  record_outliers("outliers.loss", progress.losses, manifest);
  record_outliers("outliers.gradient_norm", progress.gradient_norms, manifest);
  if (const OuterProgress& outer = progress.outer; outer.round > 0 || outer.done > 0) {
    manifest.counters["outer.round"] = outer.round;
    manifest.counters["outer.position"] = outer.position;
    manifest.counters["outer.done"] = outer.done;
    manifest.counters["outer.step"] = outer.step;
    manifest.counters["outer.first_sample"] = outer.first_sample;
    manifest.counters["outer.work_steps"] = outer.work_steps;
    manifest.counters["outer.work_batch"] = outer.work_batch;
    manifest.counters["outer.own"] = outer.own;
    manifest.counters["outer.begin"] = outer.begin;
    if (outer.warm_up > 0) manifest.counters["outer.warm_up"] = outer.warm_up;
  }
  if (std::isfinite(progress.best.loss)) {
    manifest.scalars["best_validation_loss"] = progress.best.loss;
    manifest.counters["best_validation_step"] = progress.best.step;
    if (progress.best.measure != 0) manifest.counters["validation_measure"] = progress.best.measure;
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
  progress.suspect_steps = value_of<std::int64_t>(manifest.counters, "suspect_steps", 0);
  progress.losses = recorded_outliers("outliers.loss", manifest);
  progress.gradient_norms = recorded_outliers("outliers.gradient_norm", manifest);
  const auto outer = [&](const char* name) {
    return value_of<std::int64_t>(manifest.counters, name, 0);
  };
  progress.outer = {.round = outer("outer.round"),
                    .position = outer("outer.position"),
                    .done = outer("outer.done"),
                    .step = outer("outer.step"),
                    .first_sample = outer("outer.first_sample"),
                    .work_steps = outer("outer.work_steps"),
                    .work_batch = outer("outer.work_batch"),
                    .own = outer("outer.own"),
                    .begin = outer("outer.begin"),
                    .warm_up = outer("outer.warm_up")};
  progress.best = {.loss = value_of(manifest.scalars, "best_validation_loss", progress.best.loss),
                   .step = value_of<std::int64_t>(manifest.counters, "best_validation_step", 0),
                   .measure = value_of<std::int64_t>(manifest.counters, "validation_measure", 0)};
  progress.loss = value_of(manifest.scalars, "loss", progress.loss);
  progress.validation_loss =
      value_of(manifest.scalars, "validation_loss", progress.validation_loss);
  progress.validation_step = value_of<std::int64_t>(manifest.counters, "validation_step", 0);
  return progress;
}

std::string training_digest(config::JobConfig job) {
  job.runner = {};
  job.recovery = {};
  job.watchdog = {};
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

std::map<std::string, std::string> depends_on(const BitFacts& facts) {
  std::map<std::string, std::string> names = {{"instruction set", facts.isa},
                                              {"oneDNN", facts.onednn},
                                              {"MPI", facts.mpi},
                                              {"libm", facts.libm},
                                              {kBuild, facts.build},
                                              {kData, facts.data},
                                              {"threads", fmt::format("{}", facts.threads)},
                                              {"ranks", fmt::format("{}", facts.world_size)},
                                              {"precision", facts.precision}};
  // Older checkpoints have none.
  if (!facts.layout.empty()) names["layout"] = facts.layout;
  if (!facts.order.empty()) names["order of samples"] = facts.order;
  if (facts.gpu.empty()) return names;
  for (const char* of_cpu : {"instruction set", "oneDNN", "threads"}) names.erase(of_cpu);
  names[kDevice] = facts.gpu;
  names["GPU libraries"] = facts.gpu_libraries;
  if (!facts.sum_settings.empty()) names[kSumSettings] = facts.sum_settings;
  return names;
}

Result<std::vector<std::string>> changes_since(const Manifest& manifest,
                                               const std::filesystem::path& folder,
                                               const BitFacts& facts,
                                               const config::JobConfig& job) {
  std::map<std::string, std::string> was = current_names(manifest.depends_on);
  std::map<std::string, std::string> is = depends_on(facts);
  std::vector<std::string> changes;
  // Absent facts mean the default, every rank with the whole model, the CPU, and no variables of
  // NCCL but the one that every run has.
  for (auto* names : {&was, &is}) {
    names->try_emplace("layout", "replicas alone");
    names->try_emplace(kDevice, "cpu");
    names->try_emplace(kSumSettings, "NCCL_NVLS_ENABLE=0");
  }
  // If the kind of device has changed, its other facts are not reported.
  if ((was[kDevice] == "cpu") != (is[kDevice] == "cpu"))
    for (auto* names : {&was, &is})
      for (const char* of_device :
           {"instruction set", "oneDNN", "threads", "GPU libraries", kSumSettings})
        names->erase(of_device);
  // Hashes mean nothing to users. Older versions recorded only the paths of the data.
  const bool data_recorded = was.contains(kData);
  const bool data_changed = data_recorded && was[kData] != is[kData];
  if (data_changed) changes.emplace_back("training data: other samples than before");
  if (was[kBuild] != is[kBuild]) changes.emplace_back("build: another one of sortie-train");
  for (const char* hash : {kData, kBuild}) {
    was.erase(hash);
    is.erase(hash);
  }
  for (std::string& text : differences(was, is)) changes.push_back(std::move(text));
  SORTIE_ASSIGN_OR_RETURN(const config::JobConfig saved, saved_job(manifest, folder));
  for (const KeyDifference& difference : course_differences(
           {saved, manifest.world_size}, {job, facts.world_size}, !data_recorded || data_changed))
    changes.push_back(
        fmt::format("{}: was {}, is {}", difference.key, difference.saved, difference.now));
  return changes;
}

}  // namespace sortie::trainer
