#include "trainer/cli/plan_command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "common/base/print_stderr.h"
#include "common/base/quantity.h"
#include "common/config/load.h"
#include "trainer/loop/rank_context.h"
#include "trainer/planning/model_cost.h"

namespace sortie::trainer {
namespace {

struct PlanRequest {
  std::string config;
  std::vector<std::string> overrides;
  std::int64_t world_size = 1, micro_batch_size = 0;
  int threads = 0;
  bool gpu = false, json = false;
};

Result<config::LoadedJob> load_planned(const PlanRequest& request) {
  if (request.config != "-") return config::load_job(request.config, request.overrides);
  const std::string text(std::istreambuf_iterator<char>(std::cin), {});
  return config::load_job_text(text, "the config on stdin", request.overrides);
}

Result<PlanOptions> options_of(const PlanRequest& request, const config::JobConfig& job) {
  PlanOptions options;
  options.world_size = request.world_size;
  options.gpu = request.gpu || job.trainer.device == "cuda";
  options.micro_batch_size = request.micro_batch_size;
  options.threads = request.threads > 0 ? request.threads : static_cast<int>(job.trainer.threads);
  if (options.threads == 0) {
    SORTIE_ASSIGN_OR_RETURN(const RankContext rank, rank_context_from_environment());
    options.threads = rank.threads;
  }
  const config::BatchOutcome batch = config::resolve_batch(job.topology, request.world_size);
  if (options.micro_batch_size > 0 && batch.plan.data_parallel_size > 0) return options;
  if (!batch.violations.empty())
    return fail(ErrorCode::config,
                fmt::format("{}: {}", batch.violations[0].keys[0], batch.violations[0].message));
  options.micro_batch_size = batch.plan.micro_batch_size;
  return options;
}

std::string text_of(const training::ModelCost& cost, const PlanOptions& options) {
  const std::string kernels =
      options.gpu ? "on a GPU, device: that of an H200" : fmt::format("{} kernels", cost.isa);
  return fmt::format(
      "  model     {}{}: {}\n  work      {}FLOP a token\n  memory    of a rank with {} thread{} "
      "that trains {} sequence{} at a time ({}), in MiB\n{}{}",
      cost.architecture, cost.preset.empty() ? "" : fmt::format(" ({})", cost.preset),
      training::parameters_text(cost), short_number(cost.flops_per_token), cost.threads,
      cost.threads == 1 ? "" : "s", options.micro_batch_size,
      options.micro_batch_size == 1 ? "" : "s", kernels, training::memory_table(cost),
      cost.note.empty() ? "" : fmt::format("  note      {}\n", cost.note));
}

Result<> print_plan(const PlanRequest& request) {
  SORTIE_ASSIGN_OR_RETURN(const config::LoadedJob loaded, load_planned(request));
  SORTIE_ASSIGN_OR_RETURN(const PlanOptions options, options_of(request, loaded.job));
  SORTIE_ASSIGN_OR_RETURN(const training::ModelCost cost,
                          plan_model_cost(loaded.job, options, SORTIE_VERSION));
  fmt::print("{}", request.json ? training::to_json(cost).dump() + "\n" : text_of(cost, options));
  if (!request.json && loaded.job.topology.expert_parallel_size > 1)
    fmt::print(
        "  experts   counted with as many rows each; a rank has those that are routed to it\n");
  return {};
}

}  // namespace

void add_plan_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "plan", "Parameters, operations and memory of a rank, without training it");
  auto request = std::make_shared<PlanRequest>();
  command->add_option("config,--config", request->config, "Config file; - is stdin")->required();
  command->add_option("--set", request->overrides, "KEY=VALUE, over the file")
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--world", request->world_size, "Ranks of the job")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command
      ->add_option("--micro-batch", request->micro_batch_size,
                   "Sequences of a micro-batch; default: as the config says")
      ->check(CLI::Range(1, 1 << 24));
  command
      ->add_option("--threads", request->threads,
                   "Compute threads of the rank; default: as for training here")
      ->check(CLI::Range(1, 4096));
  command->add_flag("--gpu", request->gpu,
                    "The rank computes on a GPU, as with trainer.device = \"cuda\"");
  command->add_flag("--json", request->json, "One JSON object instead of text");
  command->callback([request, &exit_code] {
    if (const Result<> outcome = print_plan(*request); !outcome) {
      // Tells the caller that the config was rejected, not the request.
      if (request->json && outcome.error().code == ErrorCode::config)
        fmt::print(
            "{}\n",
            nlohmann::json{{"version", SORTIE_VERSION}, {"error", outcome.error().message}}.dump());
      print_stderr("sortie-train: {}\n", outcome.error().message);
      exit_code = exit_code_for(outcome.error().code);
    }
  });
}

}  // namespace sortie::trainer
