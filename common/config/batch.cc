// Batch arithmetic (rules T1, T2, T4, G4 and G7): global = micro * accumulation * data parallel,
// exactly.
#include <fmt/core.h>

#include <algorithm>

#include "common/base/check.h"
#include "common/config/mesh.h"
#include "common/config/rampup.h"
#include "common/config/text.h"
#include "common/config/topology_keys.h"
#include "common/config/validate.h"

namespace sortie::config {
namespace {

Violation broken(std::string_view rule, std::vector<std::string> keys, std::string message) {
  return {rule, std::move(keys), std::move(message)};
}

std::vector<std::string> batch_keys() {
  return {kGlobal, kMicro, kAccumulation};
}

/// Divides `global` by the product of the two known factors; `derived` names the quotient.
std::int64_t derive(BatchOutcome& outcome, std::int64_t global, std::int64_t factor,
                    std::string_view factor_text, std::string_view derived) {
  if (global % factor == 0) return global / factor;
  outcome.violations.push_back(
      broken("T4", batch_keys(),
             fmt::format("{} is no multiple of {}, so {} is no whole number; use {}", global,
                         factor_text, derived, nearest_multiples(global, factor))));
  return 0;
}

/// True if micro-batch and accumulation are both unknown, or micro-batch and the global batch.
bool is_underdetermined(const TopologyConfig& topology, BatchOutcome& outcome) {
  if (topology.micro_batch_size != 0 ||
      (topology.gradient_accumulation_steps != 0 && topology.global_batch_size != 0))
    return false;
  outcome.violations.push_back(
      broken("T4", {kMicro, kGlobal, kAccumulation},
             "0 can only be derived from gradient_accumulation_steps and global_batch_size; set "
             "micro_batch_size, or both of those"));
  return true;
}

}  // namespace

std::vector<Violation> check_batch(const TopologyConfig& topology) {
  if (std::vector<Violation> wrong = check_rampup(topology); !wrong.empty()) return wrong;
  if (topology.data_parallel_size != 0) {
    const std::int64_t ranks = topology.data_parallel_size * ranks_of_replica(topology);
    TopologyConfig of_site = topology;
    // The hosts are unknown here. With several sites the global batch is that of all of them, and
    // the other sizes are those of one site.
    const std::int64_t each = topology.micro_batch_size * topology.gradient_accumulation_steps *
                              topology.data_parallel_size;
    if (each > 0 && topology.global_batch_size % each == 0) of_site.global_batch_size = each;
    return resolve_batch(of_site, ranks).violations;
  }
  BatchOutcome outcome;
  if (is_underdetermined(topology, outcome)) return outcome.violations;
  const std::int64_t micro = std::max<std::int64_t>(topology.micro_batch_size, 1);
  const std::int64_t accumulation = std::max<std::int64_t>(topology.gradient_accumulation_steps, 1);
  const std::int64_t global = topology.global_batch_size;
  const std::int64_t per_rank = micro * accumulation;
  if (global % per_rank != 0) {
    const std::string factors =
        accumulation == 1 ? fmt::format("{} (micro_batch_size)", micro)
        : micro == 1      ? fmt::format("{} (gradient_accumulation_steps)", accumulation)
                     : fmt::format("{} = {} (micro_batch_size) * {} (gradient_accumulation_steps)",
                                   per_rank, micro, accumulation);
    outcome.violations.push_back(broken(
        "T4", batch_keys(),
        fmt::format("{} is no multiple of {}, so no number of replicas fits; use a multiple of {} "
                    "times the number of replicas",
                    global, factors, per_rank)));
  }
  return outcome.violations;
}

std::int64_t ranks_of_replica(const TopologyConfig& topology) {
  return topology.tensor_parallel_size * topology.context_parallel_size *
         topology.pipeline_parallel_size;
}

namespace {

/// "2 (tensor_parallel_size) * 4 (pipeline_parallel_size)"; context_parallel_size only if not 1.
std::string replica_text(const TopologyConfig& topology) {
  const std::string shared =
      topology.context_parallel_size == 1
          ? ""
          : fmt::format(" * {} (context_parallel_size)", topology.context_parallel_size);
  return fmt::format("{} (tensor_parallel_size){} * {} (pipeline_parallel_size)",
                     topology.tensor_parallel_size, shared, topology.pipeline_parallel_size);
}

/// Rules T1 and T2: the number of replicas that these ranks form; 0 if rule T1 is broken.
std::int64_t count_replicas(const TopologyConfig& topology, std::int64_t world_size,
                            std::vector<Violation>& violations) {
  const std::int64_t each = ranks_of_replica(topology);
  if (world_size % each != 0) {
    violations.push_back(broken(
        "T1", {kTensor, kContext, kStages, "runner.hosts"},
        fmt::format("a replica of the model takes {} ranks = {}, and {} ranks are no multiple of "
                    "that; use {} ranks, or sizes whose product divides {}",
                    each, replica_text(topology), world_size, nearest_multiples(world_size, each),
                    world_size)));
    return 0;
  }
  const std::int64_t replicas = world_size / each;
  if (topology.data_parallel_size == 0 || topology.data_parallel_size == replicas) return replicas;
  violations.push_back(broken(
      "T2", {kDataParallel, "runner.hosts"},
      each == 1 ? fmt::format("{} does not fit a job of {} ranks; use {}, or 0 to follow the hosts",
                              topology.data_parallel_size, world_size, replicas)
                : fmt::format("{} does not fit a job of {} ranks with {} ranks a replica; use {}, "
                              "or 0 to follow the hosts",
                              topology.data_parallel_size, world_size, each, replicas)));
  return replicas;
}

/// Rule G4: micro-batches pass through interleaved stages in groups of the number of stages, so
/// those of every step must be a multiple of it.
void check_groups(const TopologyConfig& topology, BatchOutcome& outcome) {
  const std::int64_t stages = topology.pipeline_parallel_size;
  if (topology.pipeline_interleave == 1 || !outcome.violations.empty()) return;
  const BatchPlan& plan = outcome.plan;
  const std::int64_t each = plan.micro_batch_size * plan.data_parallel_size;
  const auto check = [&](std::string_view key, std::int64_t samples, std::string_view of) {
    const std::int64_t micro_batches = samples / each;
    if (micro_batches % stages == 0) return;
    outcome.violations.push_back(broken(
        "G4", {std::string(key), kInterleave, kStages},
        fmt::format("{} micro-batches of {} are no multiple of {} (pipeline_parallel_size), as "
                    "interleaved stages need; use {} micro-batches, or pipeline_interleave = 1",
                    micro_batches, of, stages, nearest_multiples(micro_batches, stages))));
  };
  check(topology.gradient_accumulation_steps != 0 ? kAccumulation : kGlobal, plan.global_batch_size,
        "a step");
  if (plan.rampup_share == 0) return;
  check("topology.batch_rampup_start", plan.rampup_start, "the first steps");
  check("topology.batch_rampup_increment", plan.rampup_increment, "an increment");
}

/// Rule G7: the ranks of a stage form a whole number of groups, each of which holds all experts.
void check_expert_groups(const TopologyConfig& topology, std::int64_t world_size,
                         std::vector<Violation>& violations) {
  const std::int64_t experts = topology.expert_parallel_size;
  const std::int64_t ranks = world_size / topology.pipeline_parallel_size;
  const std::int64_t tensor = expert_tensor_size(topology, world_size);
  if (ranks % (experts * tensor) == 0) return;
  violations.push_back(
      broken("G7", {kExperts, kExpertTensor, "runner.hosts"},
             fmt::format("a group that has all experts takes {} ranks = {} (expert_parallel_size) "
                         "* {} (expert_tensor_parallel_size), and {} ranks of a stage are no "
                         "multiple of that; use sizes whose product divides {}",
                         experts * tensor, experts, tensor, ranks, ranks)));
}

}  // namespace

BatchOutcome resolve_batch(const TopologyConfig& topology, std::int64_t world_size) {
  SORTIE_CHECK(world_size > 0, "world of {} ranks", world_size);
  BatchOutcome outcome;
  BatchPlan& plan = outcome.plan;
  const std::int64_t replicas = count_replicas(topology, world_size, outcome.violations);
  if (replicas == 0) return outcome;
  check_expert_groups(topology, world_size, outcome.violations);
  const std::string_view unit = replicas == world_size ? "ranks" : "replicas";
  plan.data_parallel_size = replicas;
  plan.micro_batch_size = topology.micro_batch_size;
  plan.gradient_accumulation_steps = topology.gradient_accumulation_steps;
  plan.global_batch_size = topology.global_batch_size;
  std::int64_t& micro = plan.micro_batch_size;
  std::int64_t& accumulation = plan.gradient_accumulation_steps;
  std::int64_t& global = plan.global_batch_size;
  if (is_underdetermined(topology, outcome)) return outcome;
  if (micro != 0 && global == 0 && accumulation == 0) accumulation = 1;
  const std::int64_t known = std::max<std::int64_t>(micro, 1) *
                             std::max<std::int64_t>(accumulation, 1);  // both at most 2^20
  std::int64_t factor = 0;
  if (__builtin_mul_overflow(known, replicas, &factor)) {
    outcome.violations.push_back(
        broken("T4", batch_keys(),
               fmt::format("{} sequences on each of {} {} is too large; lower micro_batch_size "
                           "or gradient_accumulation_steps",
                           known, replicas, unit)));
    return outcome;
  }
  if (global == 0) {
    global = factor;
  } else if (accumulation == 0) {
    accumulation =
        derive(outcome, global, factor,
               fmt::format("{} = {} (micro_batch_size) * {} ({})", factor, micro, replicas, unit),
               "gradient_accumulation_steps");
  } else if (micro == 0) {
    micro = derive(outcome, global, factor,
                   fmt::format("{} = {} (gradient_accumulation_steps) * {} ({})", factor,
                               accumulation, replicas, unit),
                   "micro_batch_size");
  } else if (global != factor) {
    outcome.violations.push_back(broken(
        "T4", batch_keys(),
        fmt::format("{} is not {} = {} (micro_batch_size) * {} (gradient_accumulation_steps) * {} "
                    "({}); use {}, or set one of the three to 0",
                    global, factor, micro, accumulation, replicas, unit, factor)));
  }
  resolve_rampup(topology, outcome);
  check_groups(topology, outcome);
  return outcome;
}

}  // namespace sortie::config
