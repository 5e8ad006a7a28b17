// Compares a checkpoint's job with the job that starts from it, key by key: keys that must be
// equal, and keys that may differ but change the course of training.
#pragma once

#include <string>
#include <vector>

#include "common/config/schema.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/state/start_point.h"

namespace sortie::trainer {

struct KeyDifference {
  std::string key;         // "model.num_layers"
  std::string saved, now;  // values as TOML, with derived ones filled in
  bool operator==(const KeyDifference&) const = default;
};

/// Returns the differences in keys that define the model and its low-rank updates: those of [model]
/// that its architecture reads, except those that only matter in training, and [lora].
std::vector<KeyDifference> model_differences(const config::JobConfig& saved,
                                             const config::JobConfig& now);

struct JobOnRanks {
  const config::JobConfig& job;
  std::int64_t ranks = 1;
};
/// Returns the differences in the other keys that decide which bits a step gives. Paths of training
/// data are included only on request: data is better identified by its content
/// (Manifest::depends_on).
std::vector<KeyDifference> course_differences(const JobOnRanks& saved, const JobOnRanks& now,
                                              bool with_data_paths);

/// Returns the job that a checkpoint records; ErrorCode::checkpoint if it cannot be read.
Result<config::JobConfig> saved_job(const Manifest& manifest, const std::filesystem::path& folder);

/// ErrorCode::config, naming each key with both values, if the model of the checkpoint is not that
/// of `job`. Low-rank updates may begin on weights that had none.
Result<> check_same_model(const StartPoint& start, const config::JobConfig& job);

/// ErrorCode::config if the checkpoint's optimizer, whose state the run would continue with, is not
/// that of `job`.
Result<> check_same_optimizer(const StartPoint& start, const config::JobConfig& job);

}  // namespace sortie::trainer
