#include "trainer/cli/bench_step_command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "common/config/load.h"
#include "trainer/bench/step.h"
#include "trainer/cli/load_checkpoint.h"
#include "trainer/cli/report.h"
#include "trainer/loop/compute_device.h"

namespace sortie::trainer {
namespace {

struct Arguments {
  std::string config, device = "auto";
  std::vector<std::string> overrides;
  StepBench bench;
  bool json = false;
};

nlohmann::ordered_json json_of(const StepSeconds& found) {
  nlohmann::ordered_json passes = nlohmann::ordered_json::array();
  for (const StepSeconds::Pass& pass : found.passes)
    passes.push_back({{"micro_batch_size", pass.micro_batch_size},
                      {"seconds", pass.seconds},
                      {"tflop_s", pass.flop / pass.seconds / 1e12}});
  return {{"layers", found.layers},
          {"sequence_length", found.sequence_length},
          {"passes", std::move(passes)},
          {"update", {{"parameters", found.trained}, {"seconds", found.update}}}};
}

Result<> run_step(Arguments& arguments) {
  SORTIE_ASSIGN_OR_RETURN(RankContext rank, rank_context_from_environment());
  const std::string path = arguments.config.empty() ? rank.config_path : arguments.config;
  if (path.empty())
    return fail(ErrorCode::usage,
                "neither a config file nor SORTIE_CONFIG is given; name the config of the job");
  SORTIE_ASSIGN_OR_RETURN(config::LoadedJob loaded, config::load_job(path, arguments.overrides));
  config::JobConfig& job = loaded.job;
  if (job.trainer.threads > 0) rank.threads = static_cast<int>(job.trainer.threads);
  rank.rank = 0;  // each rank alone, whatever the world of the job is
  rank.world_size = 1;
  SORTIE_ASSIGN_OR_RETURN(
      rank.compute,
      choose_device_of_verb(arguments.device == "auto" ? job.trainer.device : arguments.device));
  const CpuFacts cpu = cpu_facts();
  SORTIE_ASSIGN_OR_RETURN(const DType precision,
                          choose_precision(job.model.precision, cpu, rank.compute.gpu));
  const std::string dtype = name_of_precision(job.model, precision);
  SORTIE_ASSIGN_OR_RETURN(const StepSeconds found,
                          bench_step(job, rank, cpu, precision, arguments.bench));
  const std::string device =
      rank.compute.gpu ? rank.compute.name()
                       : fmt::format("{} ({}), {} threads", cpu.model, cpu.isa, rank.threads);
  if (arguments.json) {
    nlohmann::ordered_json report = {
        {"schema", "sortie/bench-step/1"}, {"device", device}, {"dtype", dtype}};
    report.update(json_of(found));
    fmt::print("{}\n", report.dump());
    return {};
  }
  fmt::print("# {}: {} of {} layers, sequences of {} tokens, in {}\n", device,
             job.model.architecture, found.layers, found.sequence_length, dtype);
  fmt::print("{:<28} {:>12} {:>9}\n", "forward and backward of", "ms", "TFLOP/s");
  for (const StepSeconds::Pass& pass : found.passes)
    fmt::print(
        "{:<28} {:>12.2f} {:>9.3f}\n",
        fmt::format("{} sequence{}", pass.micro_batch_size, pass.micro_batch_size == 1 ? "" : "s"),
        1e3 * pass.seconds, pass.flop / pass.seconds / 1e12);
  fmt::print("{:<28} {:>12.2f}\n", fmt::format("update of {} parameters", found.trained),
             1e3 * found.update);
  return {};
}

}  // namespace

void add_bench_step(CLI::App& bench, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = bench.add_subcommand(
      "step", "Time the passes and the update of a job's model on one rank that is alone");
  command->add_option("config,--config", arguments->config,
                      "Config file; without it SORTIE_CONFIG");
  command->add_option("--set", arguments->overrides, "KEY=VALUE, over the file")
      ->take_all()
      ->allow_extra_args(false);
  command
      ->add_option(
          "--layers", arguments->bench.layers,
          "Number of layers, if the whole model is too large for one rank; default: that of "
          "the job")
      ->check(CLI::Range(1, 1 << 16));
  command
      ->add_option("--micro-batches", arguments->bench.micro_batch_sizes,
                   "Sizes of micro-batches, in sequences; default: 1,2,4")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  command
      ->add_option("--seconds", arguments->bench.seconds,
                   "How long to repeat the passes of each micro-batch size, in seconds")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  add_device_option(*command, arguments->device);
  command->add_flag("--json", arguments->json, "One JSON object instead of text");
  command->callback(
      [arguments, &exit_code] { exit_code = report_error("bench step", run_step(*arguments)); });
}

}  // namespace sortie::trainer
