// The cost of a training job for its plan: parameters, operations and memory per rank, as computed
// by the trainer.
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

/// Request to the trainer.
struct CostQuestion {
  std::string config_toml;  // as the trainer reads it
  std::int64_t world_size = 1, micro_batch_size = 1;
  std::int64_t threads = 1;  // per rank
  bool operator==(const CostQuestion&) const = default;
};
/// Asks the sortie-train of this build (run/ask_trainer.h). ErrorCode::config: it rejects the
/// config, and therefore the job. Other errors: there is no answer; the message has the reason in
/// one line. Empty function: there is no trainer.
using AskTrainer = std::function<Result<training::ModelCost>(const CostQuestion&)>;

struct ModelPlan {
  CostQuestion asked;
  training::ModelCost cost;
  std::int64_t tokens_per_step = 0;
  bool threads_assumed = true;  // the core counts of the hosts are unknown
};

/// Fills in plan.model, plan.beside_preset and plan.model_warnings from what is known about the
/// hosts. Without an answer of the trainer the plan has no model, but a warning if the request
/// failed. ErrorCode::config if the trainer rejects the config.
Result<> plan_model(const config::JobConfig& job, const AskTrainer& ask, LaunchPlan& plan);

/// The lines about the model in the text of a plan.
std::string model_text(const LaunchPlan& plan);
nlohmann::ordered_json model_json(const ModelPlan& model);

}  // namespace sortie::launcher
