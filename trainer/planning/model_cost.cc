#include "trainer/planning/model_cost.h"

#include <cmath>

#include "trainer/loop/compute_device.h"

namespace sortie::trainer {

Result<training::ModelCost> plan_model_cost(const config::JobConfig& job, PlanOptions options,
                                            const std::string& version) {
  training::ModelCost cost;
  cost.version = version;
  cost.isa = options.gpu ? "gpu" : cpu_facts().isa;
  cost.architecture = job.model.architecture;
  cost.preset = job.model.preset;
  cost.threads = options.threads;
  const bool fp8 = job.model.precision == "fp8";
  if (fp8 && !options.gpu)
    return fail(
        ErrorCode::config,
        "model.precision = \"fp8\": products in FP8 need GPUs, and this plan is one of CPUs; "
        "set trainer.device = \"cuda\", or use \"bf16\"");
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const std::string name = name_of_precision(job.model, dtype);
    if (fp8 ? dtype != DType::bf16 : job.model.precision != "auto" && job.model.precision != name)
      continue;
    options.dtype = dtype;
    SORTIE_ASSIGN_OR_RETURN(const std::vector<RankPlan> stages, plan_stages(job, options));
    const RankPlan plan = whole_plan(stages);
    cost.parameters = plan.parameters.total;
    cost.active_parameters = plan.parameters.active;
    cost.trained_parameters = plan.parameters.trained;
    cost.flops_per_token = plan.flop_per_token;
    training::ModelCost::Memory memory{name, {}};
    for (const auto& [part, bytes] : plan.memory.parts())
      if (part != "device" || options.gpu) memory.parts.emplace_back(part, bytes);
    cost.memory.push_back(std::move(memory));
    cost.bubble = plan.bubble;
    cost.note = plan.in_bf16.text();
    cost.stages.resize(stages.size());
    for (std::size_t i = 0; i < stages.size(); ++i) {
      training::ModelCost::StageUse use{name, stages[i].memory.total(), {}};
      for (const auto& [to, bytes] : stages[i].sent)
        if (bytes > 0.0) use.sent.push_back({to.group, to.peer, std::llround(bytes)});
      cost.stages[i].push_back(std::move(use));
    }
  }
  return cost;
}

}  // namespace sortie::trainer
