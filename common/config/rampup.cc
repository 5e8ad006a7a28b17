#include "common/config/rampup.h"

#include <fmt/core.h>

#include <algorithm>

#include "common/config/topology_keys.h"

namespace sortie::config {
namespace {

constexpr std::string_view kStart = "topology.batch_rampup_start";
constexpr std::string_view kIncrement = "topology.batch_rampup_increment";
constexpr std::string_view kSamples = "topology.batch_rampup_samples";

Violation broken_rampup(std::string_view first, std::string_view second, std::string message) {
  return {"T6",
          {std::string(first), std::string(second), std::string(kStart), std::string(kIncrement),
           std::string(kSamples)},
          std::move(message)};
}

}  // namespace

std::vector<Violation> check_rampup(const TopologyConfig& topology) {
  const int set = (topology.batch_rampup_start > 0) + (topology.batch_rampup_increment > 0) +
                  (topology.batch_rampup_samples > 0);
  if (set == 0 || set == 3) return {};
  const std::string_view missing = topology.batch_rampup_start == 0       ? kStart
                                   : topology.batch_rampup_increment == 0 ? kIncrement
                                                                          : kSamples;
  return {broken_rampup(missing, kStart,
                        "a batch ramp-up needs batch_rampup_start, batch_rampup_increment and "
                        "batch_rampup_samples; set the three, or none")};
}

void resolve_rampup(const TopologyConfig& topology, BatchOutcome& outcome) {
  BatchPlan& plan = outcome.plan;
  const std::int64_t start = topology.batch_rampup_start, step = topology.batch_rampup_increment;
  if (!outcome.violations.empty() || start == 0 || step == 0 || topology.batch_rampup_samples == 0)
    return;
  const std::int64_t unit = plan.micro_batch_size * plan.data_parallel_size;
  for (const auto& [key, value] : {std::pair{kStart, start}, {kIncrement, step}})
    if (value % unit != 0)
      outcome.violations.push_back(broken_rampup(
          key, kGlobal,
          fmt::format("{} is no multiple of {} = {} (micro_batch_size) * {} (replicas); use {}",
                      value, unit, plan.micro_batch_size, plan.data_parallel_size,
                      std::max(unit, value / unit * unit))));
  const std::int64_t grow = plan.global_batch_size - start;
  if (grow <= 0 || grow % step != 0)
    outcome.violations.push_back(broken_rampup(
        kStart, kGlobal,
        fmt::format("steps of {} from {} do not lead to global_batch_size = {}; use a start "
                    "and an increment that do",
                    step, start, plan.global_batch_size)));
  if (!outcome.violations.empty()) return;
  plan.rampup_start = start;
  plan.rampup_increment = step;
  plan.rampup_share = std::max<std::int64_t>(topology.batch_rampup_samples / (grow / step), 1);
}

std::int64_t batch_size_at(const BatchPlan& plan, std::int64_t consumed_samples) {
  if (plan.rampup_share == 0) return plan.global_batch_size;
  const std::int64_t sizes = (plan.global_batch_size - plan.rampup_start) / plan.rampup_increment;
  const std::int64_t passed = std::min(consumed_samples / plan.rampup_share, sizes);
  return plan.rampup_start + passed * plan.rampup_increment;
}

std::int64_t samples_of_steps(const BatchPlan& plan, std::int64_t steps) {
  std::int64_t consumed = 0;
  for (; steps > 0; --steps) {
    const std::int64_t batch = batch_size_at(plan, consumed);
    if (batch == plan.global_batch_size) break;  // all further steps have this size
    consumed += batch;
  }
  return consumed + steps * plan.global_batch_size;
}

std::int64_t steps_for_samples(const BatchPlan& plan, std::int64_t samples) {
  std::int64_t steps = 0, consumed = 0;
  while (consumed < samples) {
    const std::int64_t batch = batch_size_at(plan, consumed);
    if (batch == plan.global_batch_size)
      return steps + (samples - consumed + batch - 1) / batch;  // all further steps have this size
    consumed += batch;
    ++steps;
  }
  return steps;
}

}  // namespace sortie::config
