// What a training job costs, for its plan: parameters, operations and the memory of a rank, as the
// trainer counts them.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "common/training/model_cost.h"

namespace sortie::launcher {

struct LaunchPlan;

/// What the trainer is asked for.
struct CostQuestion {
  std::string config_toml;  // as the trainer reads it
  std::int64_t world_size = 1, micro_batch_size = 1;
  std::int64_t threads = 1;  // of a rank
  bool operator==(const CostQuestion&) const = default;
};
/// Asks a sortie-train of this build (run/ask_trainer.h). ErrorCode::config: it refuses the config,
/// and the job with it. Other errors: there is no answer, one line says why. Empty = nobody to ask.
using AskTrainer = std::function<Result<training::ModelCost>(const CostQuestion&)>;

struct ModelPlan {
  CostQuestion asked;
  training::ModelCost cost;
  std::int64_t tokens_per_step = 0;
  bool threads_assumed = true;  // the hosts' cores are not known
};

/// Fills in plan.model, plan.beside_preset and plan.warnings, from what is known of the hosts.
/// Where the trainer gives no answer the plan has no model, and a warning. ErrorCode::config where
/// it refuses the config.
Result<> plan_model(const config::JobConfig& job, const AskTrainer& ask, LaunchPlan& plan);

/// The lines of a plan with a model, for people.
std::string model_text(const LaunchPlan& plan);
nlohmann::ordered_json model_json(const ModelPlan& model);

}  // namespace sortie::launcher
