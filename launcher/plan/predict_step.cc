#include "launcher/plan/predict_step.h"

#include <algorithm>
#include <functional>

#include "common/config/mesh.h"
#include "launcher/plan/plan_traffic.h"

namespace sortie::launcher {

std::int64_t memory_on_gpu(const training::ModelCost::Memory& memory) {
  return memory.total() - memory.on_host();
}

namespace {

/// Seconds for traffic on links; traffic within hosts and between hosts is not overlapped.
double link_seconds(const StepTraffic& traffic, std::int64_t ranks, const MeasuredRates& rates) {
  // An unused rate may be unknown.
  const auto seconds = [](double bytes, double byte_s) {
    return bytes > 0.0 ? bytes / byte_s : 0.0;
  };
  return seconds(traffic.within_hosts / static_cast<double>(ranks), rates.host_byte_s) +
         seconds(traffic.busiest_bytes, rates.link_byte_s);
}

const StepTraffic* of_precision(const std::vector<StepTraffic>& all, const std::string& name) {
  const auto found = std::ranges::find(all, name, &StepTraffic::precision);
  return found == all.end() ? nullptr : &*found;
}

/// Parameters that a rank updates; experts are treated like all others.
double parameters_of_rank(const Suggestion& one, const training::ModelCost& cost) {
  const double of_group =
      static_cast<double>(cost.trained_parameters) / static_cast<double>(one.tensor * one.pipeline);
  return one.sharding == "none" ? of_group
                                : of_group / static_cast<double>(one.replicas * one.context);
}

/// Bytes that a rank sends to groups accepted by `counts`, in the stage that sends most.
double sent_to(const training::ModelCost& cost, const std::string& precision,
               const std::function<bool(const std::string&)>& counts) {
  double most = 0.0;
  for (const auto& stage : cost.stages)
    for (const training::ModelCost::StageUse& use : stage) {
      if (use.precision != precision) continue;
      double bytes = 0.0;
      for (const training::ModelCost::Sent& sent : use.sent)
        if (counts(sent.group)) bytes += static_cast<double>(sent.bytes);
      most = std::max(most, bytes);
    }
  return most;
}

/// Seconds of exposed traffic between replicas. It overlaps passes: gradients overlap the last
/// backward pass, except the last bucket, which is complete only at its end; the weights of a
/// sharded optimizer, half of the traffic, overlap the first forward pass; with full sharding all
/// passes are overlapped.
double replicas_wait(double seconds, double work, double repeats, const Suggestion& one) {
  constexpr double kBuckets = 16.0;
  const double pass = work / static_cast<double>(one.accumulation);
  const double forward = pass / (3.0 * repeats), backward = pass - forward;
  const auto exposed = [](double sent, double beside) {
    return std::max(sent / kBuckets, sent - beside);
  };
  if (one.sharding == "full") return exposed(seconds, work);
  if (one.sharding == "optimizer")
    return exposed(seconds / 2, backward) + exposed(seconds / 2, forward);
  return exposed(seconds, backward);
}

}  // namespace

Suggestion predict_step(const config::JobConfig& job, const LaunchPlan& plan, std::size_t use,
                        const MeasuredRates& rates) {
  const config::TopologyConfig& topology = job.topology;
  const training::ModelCost& cost = plan.model->cost;
  Suggestion one{.tensor = topology.tensor_parallel_size,
                 .pipeline = topology.pipeline_parallel_size,
                 .interleave = topology.pipeline_interleave,
                 .context = topology.context_parallel_size,
                 .experts = topology.expert_parallel_size,
                 .sequence = topology.sequence_parallel,
                 .zero_bubble = config::has_zero_bubble(topology),
                 .sharding = topology.parameter_sharding,
                 .micro_batch_size = plan.batch->micro_batch_size,
                 .accumulation = plan.batch->gradient_accumulation_steps,
                 .replicas = plan.batch->data_parallel_size,
                 .memory_bytes = cost.memory[use].total(),
                 .gpu_memory_bytes = memory_on_gpu(cost.memory[use])};
  const double repeats = topology.activation_checkpointing_type == "every_layer" ? 4.0 / 3.0 : 1.0;
  const double work =
      repeats * cost.flops_per_token * static_cast<double>(plan.model->tokens_per_step) /
      (flop_s_of(rates, one.micro_batch_size) * static_cast<double>(plan.world_size));
  one.compute = work / (1.0 - cost.bubble) + rates.update_s * parameters_of_rank(one, cost);
  const auto is_replicas = [](const std::string& group) {
    return group == "replicas" || group == "world" || group == "expert data";
  };
  const std::string& precision = cost.memory[use].precision;
  const std::vector<StepTraffic> beside = step_traffic(plan, is_replicas);
  const std::vector<StepTraffic> between =
      step_traffic(plan, [&](const std::string& group) { return !is_replicas(group); });
  if (const StepTraffic* in_passes = of_precision(between, precision))
    one.waits += link_seconds(*in_passes, plan.world_size, rates);
  one.compute += rates.beside_s * sent_to(cost, precision, is_replicas);
  if (const StepTraffic* hidden = of_precision(beside, precision))
    one.waits += replicas_wait(link_seconds(*hidden, plan.world_size, rates), work, repeats, one);
  return one;
}

}  // namespace sortie::launcher
