// Cross-field rules over a whole JobConfig. Pure: no file and no host is touched.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/schema.h"

namespace sortie::config {

/// A broken rule: its id in README.md, the keys to blame (the first one that was set gives the
/// position) and the message "why; what to do" with the exact numbers.
struct Violation {
  std::string_view rule;
  std::vector<std::string> keys;
  std::string message;
};

/// Every broken rule, empty when the job is valid. Does not know the world size: that is
/// resolve_batch's business.
std::vector<Violation> validate(const JobConfig& job);

/// Of that, the rules about [optimizer], [learning_rate_scheduler] and [trainer].
std::vector<Violation> check_training(const JobConfig& job);

/// What a job of sortie-train (runner.program empty) needs beyond that: rule D1, token files. Not
/// part of validate(), because a job for another program needs none.
std::vector<Violation> validate_training(const JobConfig& job);

/// Whether Sortie sets that variable itself, another value for each rank.
bool is_set_by_sortie(std::string_view name);

/// Batch arithmetic once the world size is known: global = micro * accumulation * data parallel,
/// exactly. Two of the three batch keys decide, 0 means derived.
struct BatchPlan {
  std::int64_t data_parallel_size = 0;
  std::int64_t micro_batch_size = 0;
  std::int64_t gradient_accumulation_steps = 0;
  std::int64_t global_batch_size = 0;
  // Ramp-up, all 0 without one: the batch grows by `increment` from `start` every `share` samples.
  std::int64_t rampup_start = 0, rampup_increment = 0, rampup_share = 0;
  bool operator==(const BatchPlan&) const = default;
};
struct BatchOutcome {
  BatchPlan plan;
  std::vector<Violation> violations;  // plan is meaningful only when empty
};
/// What is wrong for any number of ranks (part of validate()), and for exactly `world_size` ranks.
std::vector<Violation> check_batch(const TopologyConfig& topology);
/// Ranks that hold one model together.
std::int64_t ranks_of_replica(const TopologyConfig& topology);
BatchOutcome resolve_batch(const TopologyConfig& topology, std::int64_t world_size);

/// Sequences of the step that begins after `consumed_samples`; global_batch_size without ramp-up.
std::int64_t batch_size_at(const BatchPlan& plan, std::int64_t consumed_samples);
/// Sequences that the first `steps` steps train.
std::int64_t samples_of_steps(const BatchPlan& plan, std::int64_t steps);
/// Steps that train at least `samples` sequences from the start on.
std::int64_t steps_for_samples(const BatchPlan& plan, std::int64_t samples);

/// What is wrong with the shape of the model (part of validate()).
std::vector<Violation> check_model(const ModelConfig& model);
/// Whether the model can be cut as [topology] asks (part of validate()): rules G1 to G3.
std::vector<Violation> check_layout(const JobConfig& job);
/// Of mixtures of experts, latent attention and multi-token prediction (part of check_model).
void check_mixture(const ModelConfig& model, std::vector<Violation>& found);

}  // namespace sortie::config
