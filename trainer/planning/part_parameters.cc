#include "trainer/planning/part_parameters.h"

#include <algorithm>

#include "common/config/architectures.h"
#include "trainer/models/model.h"
#include "trainer/nn/lora.h"

namespace sortie::trainer {
namespace {

Result<> prepare(const config::JobConfig& job, ParameterStore& store, Optimizer& optimizer,
                 Patterns patterns) {
  SORTIE_TRY(add_lora(job.lora, store, patterns));
  SORTIE_TRY(freeze_parameters(job, store, patterns));
  return optimizer.assign_groups(patterns);
}

/// Returns the first run that has trained parameters. Declares the whole model on the meta device
/// to find it, which takes no memory.
Result<std::int64_t> find_first_trained_run(const config::JobConfig& job) {
  ExecutionContext context(1, {.kind = DeviceKind::meta});
  ParameterStore store;
  const LanguageModel model(context, job.model, store, /*recompute_layers=*/false);
  Optimizer optimizer(job, store);
  SORTIE_TRY(prepare(job, store, optimizer, Patterns::must_match));
  const RunOfParameter run_of(job);
  std::int64_t first = job.topology.pipeline_parallel_size * job.topology.pipeline_interleave;
  for (const auto& parameter : store.parameters())
    if (parameter->trained()) first = std::min(first, run_of(parameter->name()));
  return first;
}

}  // namespace

Result<StageFacts> prepare_parameters(const config::JobConfig& job, const ModelPart& part,
                                      ParameterStore& store, Optimizer& optimizer) {
  if (job.model.precision == "fp8") store.multiply_in_fp8(job.model.fp8_scaling == "delayed");
  StageFacts facts;
  const bool mixtures = config::architecture_of(job.model).mixture;
  if (mixtures)
    facts.mixtures = mixtures_below(job.model, job.model.num_layers + job.model.mtp.num_layers);
  if (job.topology.pipeline_parallel_size == 1) {
    SORTIE_TRY(prepare(job, store, optimizer, Patterns::must_match));
    return facts;
  }
  SORTIE_ASSIGN_OR_RETURN(facts.first_trained_run, find_first_trained_run(job));
  SORTIE_TRY(prepare(job, store, optimizer, Patterns::may_match));
  if (mixtures && job.model.moe.aux_loss_coeff > 0.0)
    facts.balanced_experts = job.model.moe.num_experts;
  for (const LayerSpan& run : part.runs)
    facts.mixtures_before.push_back(mixtures_below(job.model, run.begin));
  return facts;
}

}  // namespace sortie::trainer
