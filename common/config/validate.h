// Rules that involve several keys of a JobConfig. Pure functions: they access no file and no host.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/schema.h"

namespace sortie::config {

/// A broken rule: its id in README.md, the keys to blame (the first of them that was set gives the
/// position), and the message "why; what to do" with the exact numbers.
struct Violation {
  std::string_view rule;
  std::vector<std::string> keys;
  std::string message;
  /// The first key is set, but the value of the last one means that nothing reads it. If --set has
  /// changed the last one, load.h ignores the first one of a file with a warning.
  bool unread = false;
};

/// Returns every broken rule; empty if the job is valid. Does not know the world size: see
/// resolve_batch().
std::vector<Violation> validate(const JobConfig& job);

/// The rules over the schedule and the training groups (validate_schedule.cc), a part of
/// check_training().
std::vector<Violation> check_schedules(const JobConfig& job);

/// The part of validate() about [optimizer], [learning_rate_scheduler], [trainer] and [profiler].
std::vector<Violation> check_training(const JobConfig& job);

/// Additional rules for jobs of sortie-train (runner.program empty): D1 and D3 to D6, about data.
/// Not part of validate(), because a job for another program needs no token files.
std::vector<Violation> validate_training(const JobConfig& job);

/// Whether Sortie sets this variable itself, with a different value for each rank.
bool is_set_by_sortie(std::string_view name);

/// Batch sizes for a known world size: global = micro * accumulation * data parallel, exactly. Two
/// of the three batch keys determine the third; 0 means derived.
struct BatchPlan {
  std::int64_t data_parallel_size = 0;
  std::int64_t micro_batch_size = 0;
  std::int64_t gradient_accumulation_steps = 0;
  std::int64_t global_batch_size = 0;
  // Ramp-up; all 0 without one. The batch grows from `start` by `increment` every `share` samples.
  std::int64_t rampup_start = 0, rampup_increment = 0, rampup_share = 0;
  bool operator==(const BatchPlan&) const = default;
};
struct BatchOutcome {
  BatchPlan plan;
  std::vector<Violation> violations;  // `plan` is valid only if empty
};
/// Violations that hold for any number of ranks (part of validate()).
std::vector<Violation> check_batch(const TopologyConfig& topology);
/// Number of ranks that hold one replica of the model together.
std::int64_t ranks_of_replica(const TopologyConfig& topology);
/// The batch plan for exactly `world_size` ranks, or what is wrong with it.
BatchOutcome resolve_batch(const TopologyConfig& topology, std::int64_t world_size);

/// Batch size of the step that begins after `consumed_samples`; global_batch_size without ramp-up.
std::int64_t batch_size_at(const BatchPlan& plan, std::int64_t consumed_samples);
/// Number of sequences in the first `steps` steps.
std::int64_t samples_of_steps(const BatchPlan& plan, std::int64_t steps);
/// Number of steps from the start that train at least `samples` sequences.
std::int64_t steps_for_samples(const BatchPlan& plan, std::int64_t samples);

/// Violations about the shape of the model (part of validate()).
std::vector<Violation> check_model(const ModelConfig& model);
/// Violations about the split of the model over ranks (part of validate()): rules G1 to G3, G5, G6
/// and G8 to G10.
std::vector<Violation> check_layout(const JobConfig& job);
/// Adds violations about mixtures of experts, latent attention and multi-token prediction (part of
/// check_model()).
void check_mixture(const ModelConfig& model, std::vector<Violation>& found);

}  // namespace sortie::config
