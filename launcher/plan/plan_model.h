// What a training job costs, for its plan: parameters, operations and the memory of a rank. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "common/model/memory.h"
#include "common/model/parameters.h"

namespace sortie::launcher {

struct LaunchPlan;

struct ModelPlan {
  std::string architecture;
  std::string preset;  // empty = none
  model::ParameterCount parameters;
  double flops_per_token = 0.0;
  std::int64_t tokens_per_step = 0;
  std::int64_t threads = 0;     // of a rank
  bool threads_assumed = true;  // the hosts' cores are not known
  struct OfPrecision {
    std::string name;  // "bf16"
    model::MemoryUse memory;
  };
  /// Of a rank; both where the hosts' CPUs decide.
  std::vector<OfPrecision> memory;
};

/// Fills in plan.model, plan.beside_preset and plan.warnings, from what is known of the hosts.
/// ErrorCode::config for patterns of parameter names that match nothing.
Result<> plan_model(const config::JobConfig& job, LaunchPlan& plan);

/// The lines of a plan with a model, for people.
std::string model_text(const LaunchPlan& plan);
nlohmann::ordered_json model_json(const ModelPlan& model);

}  // namespace sortie::launcher
