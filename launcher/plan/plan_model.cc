#include "launcher/plan/plan_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "common/config/describe.h"
#include "common/config/hostlist.h"
#include "common/cpu/cpu_list.h"
#include "launcher/console/console.h"
#include "launcher/plan/host_memory.h"
#include "launcher/plan/plan.h"
#include "launcher/plan/plan_layout.h"

namespace sortie::launcher {
namespace {

constexpr std::int64_t kAssumedThreads = 8;

/// The OMP_NUM_THREADS that the runner will set; 0 = unknown.
std::int64_t threads_of(const HostPlan& host, const RankPlan& rank) {
  if (rank.threads > 0) return rank.threads;
  if (!rank.cpus.empty())
    if (const auto cpus = cpu::parse_cpu_list(rank.cpus))
      return static_cast<std::int64_t>(cpus->size());
  if (host.cpus == 0) return 0;
  return std::max<std::int64_t>(1, host.cpus / static_cast<std::int64_t>(host.ranks.size()));
}

struct Threads {
  std::int64_t most = 0;  // of any rank
  bool assumed = false;   // unknown for some ranks
};
Threads find_threads(const config::JobConfig& job, const LaunchPlan& plan) {
  Threads found{job.trainer.threads, false};
  if (found.most > 0) return found;
  for (const HostPlan& host : plan.hosts)
    for (const RankPlan& rank : host.ranks) {
      const std::int64_t threads = threads_of(host, rank);
      found.assumed = found.assumed || threads == 0;
      found.most = std::max(found.most, threads);
    }
  if (found.assumed) found.most = std::max(found.most, kAssumedThreads);
  return found;
}

/// " (gpt2-124m with num_layers = 2)": a modified preset is never shown by its name alone.
std::string preset_text(const LaunchPlan& plan) {
  const std::string& preset = plan.model->cost.preset;
  if (preset.empty()) return "";
  if (plan.beside_preset.empty()) return fmt::format(" ({})", preset);
  return fmt::format(" ({} with {})", preset, fmt::join(plan.beside_preset, ", "));
}

/// Warns about hosts whose ranks have more compute threads than cores.
std::vector<std::string> crowded(const config::JobConfig& job, const LaunchPlan& plan) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::string>> names;
  for (const HostPlan& host : plan.hosts) {
    std::int64_t threads = 0;
    for (const RankPlan& rank : host.ranks)
      threads += job.trainer.threads > 0 ? job.trainer.threads : threads_of(host, rank);
    if (host.cpus > 0 && threads > host.cpus) names[{threads, host.cpus}].push_back(host.name);
  }
  std::vector<std::string> warnings;
  for (const auto& [numbers, hosts] : names)
    warnings.push_back(fmt::format(
        "{}: {} compute threads on {} core{}, so steps are slow; set trainer.threads lower, or "
        "give {} fewer slots",
        config::fold_host_names(hosts), numbers.first, numbers.second,
        numbers.second == 1 ? "" : "s", hosts.size() == 1 ? "it" : "them"));
  return warnings;
}

/// Asks for the cost, unless the plan already has the answer to the same question.
Result<> ask_cost(const AskTrainer& ask, CostQuestion question, LaunchPlan& plan) {
  if (plan.model && plan.model->asked == question) return {};
  plan.model.reset();
  if (!ask) return {};
  Result<training::ModelCost> cost = ask(question);
  if (cost) {
    plan.model = ModelPlan{std::move(question), std::move(*cost)};
    return {};
  }
  if (cost.error().code == ErrorCode::config) return std::unexpected(std::move(cost).error());
  plan.model_warnings.push_back("the plan has no parameters, operations and memory: " +
                                cost.error().message);
  return {};
}

}  // namespace

Result<> plan_model(const config::JobConfig& job, const AskTrainer& ask, LaunchPlan& plan) {
  const Threads threads = find_threads(job, plan);
  plan.model_warnings.clear();
  SORTIE_TRY(ask_cost(
      ask, {plan.trainer_config, plan.world_size, plan.batch->micro_batch_size, threads.most},
      plan));
  if (plan.model) {
    plan.model->tokens_per_step = plan.batch->global_batch_size * job.model.sequence_length;
    plan.model->threads_assumed = threads.assumed;
  }
  plan.beside_preset = config::beside_preset(job);
  if (plan.mesh) std::ranges::move(layout_warnings(plan), std::back_inserter(plan.model_warnings));
  std::ranges::move(memory_warnings(plan), std::back_inserter(plan.model_warnings));
  if (job.trainer.save_dir.empty())
    plan.model_warnings.emplace_back(
        "trainer.save_dir is not set: no checkpoint is written and nothing of this training is "
        "kept; add --set trainer.save_dir=FOLDER");
  std::ranges::move(crowded(job, plan), std::back_inserter(plan.model_warnings));
  return {};
}

std::string model_text(const LaunchPlan& plan) {
  const ModelPlan& model = *plan.model;
  const training::ModelCost& cost = model.cost;
  return fmt::format("  model     {}{}: {}\n", cost.architecture, preset_text(plan),
                     training::parameters_text(cost)) +
         fmt::format(
             "  work      {}FLOP a token, {}FLOP a step of {} tokens\n",
             short_number(cost.flops_per_token),
             short_number(cost.flops_per_token * static_cast<double>(model.tokens_per_step)),
             training::with_commas(model.tokens_per_step)) +
         fmt::format("  memory    of a rank with {} thread{}{}, in MiB\n", cost.threads,
                     cost.threads == 1 ? "" : "s",
                     model.threads_assumed ? " (assumed: the hosts' cores are not known)" : "") +
         training::memory_table(cost) +
         (cost.note.empty() ? "" : fmt::format("  note      {}\n", cost.note));
}

nlohmann::ordered_json model_json(const ModelPlan& model) {
  nlohmann::ordered_json json = training::to_json(model.cost);
  json["tokens_per_step"] = model.tokens_per_step;
  json["threads_assumed"] = model.threads_assumed;
  return json;
}

}  // namespace sortie::launcher
