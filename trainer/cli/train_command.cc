#include "trainer/cli/train_command.h"

#include <fmt/core.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "common/config/fields.h"
#include "common/config/load.h"
#include "common/config/stage.h"
#include "trainer/loop/crowded_hosts.h"
#include "trainer/loop/rank_end.h"
#include "trainer/loop/startup_check.h"
#include "trainer/loop/trainer.h"
#include "trainer/samples/chat_source.h"
#include "trainer/samples/dataset_source.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace {

Result<> check_start(Communicator& communicator, const RankContext& rank,
                     const config::JobConfig& job, const std::string& build,
                     const SampleSource& training, const SampleSource* validation,
                     DType precision) {
  config::JobConfig shared = job;
  shared.runner = {};
  return check_agreement(
      communicator, rank,
      {{"build", build, "copy the same sortie-train to every host, or share the folder"},
       {"config", sha256_hex(config::to_toml(shared)), "start all ranks with one config"},
       {"training data", training.fingerprint(),
        "copy the same token files to every host, or share the folder"},
       {"validation data", validation ? validation->fingerprint() : "",
        "copy the same token files to every host"},
       {"precision", std::string(dtype_name(precision)),
        "hosts differ in their CPUs; set model.precision to f32"}});
}

Result<std::unique_ptr<SampleSource>> open_chats(const config::JobConfig& job,
                                                 const std::vector<std::string>& chats,
                                                 bool shuffle) {
  SORTIE_ASSIGN_OR_RETURN(const auto tokenizer, make_tokenizer(job.data.tokenizer));
  SORTIE_ASSIGN_OR_RETURN(auto source, ChatSource::open(job, chats, *tokenizer, shuffle));
  if (source->left_out() > 0)
    log::warning("{}: {} conversations are left out: no answer in their first {} tokens",
                 chats.front(), source->left_out(), job.model.sequence_length);
  return source;
}

Result<std::unique_ptr<SampleSource>> open_training(const config::JobConfig& job,
                                                    const config::BatchPlan& batch) {
  if (!job.data.chat_files.empty()) return open_chats(job, job.data.chat_files, /*shuffle=*/true);
  DatasetSource::Course course;
  course.samples =
      static_cast<std::uint64_t>(config::samples_of_steps(batch, job.trainer.train_iterations));
  course.micro_step = static_cast<std::uint64_t>(batch.micro_batch_size * batch.data_parallel_size);
  return DatasetSource::open_training(job, course);
}

/// Null when there is nothing to validate on.
Result<std::unique_ptr<SampleSource>> open_validation(const config::JobConfig& job) {
  if (!job.data.validation_chat_files.empty())
    return open_chats(job, job.data.validation_chat_files, /*shuffle=*/false);
  if (job.data.validation_data_prefixes.empty()) return nullptr;
  return DatasetSource::open_validation(job, job.data.validation_data_prefixes);
}

/// Turns trainer.train_epochs into steps, and judges the schedule by them.
Result<> resolve_epochs(config::JobConfig& job, const config::BatchPlan& batch,
                        const SampleSource& training) {
  if (job.trainer.train_epochs == 0) return {};
  job.trainer.train_iterations =
      config::steps_for_samples(batch, job.trainer.train_epochs * training.samples_per_epoch());
  config::JobConfig known = job;
  known.trainer.train_epochs = 0;
  const std::vector<config::Violation> violations = config::check_training(known);
  if (violations.empty()) return {};
  return fail(ErrorCode::config, fmt::format("{} epochs are {} steps: {}: {}",
                                             job.trainer.train_epochs, job.trainer.train_iterations,
                                             violations[0].keys[0], violations[0].message));
}

Result<> train(const std::string& config_path, RankEnd& end) {
  SORTIE_ASSIGN_OR_RETURN(RankContext rank, rank_context_from_environment());
  end.set_rank(rank);
  SORTIE_ASSIGN_OR_RETURN(EventSink events, EventSink::open(rank.socket_path));
  end.set_events(std::move(events));
  const std::string path = config_path.empty() ? rank.config_path : config_path;
  if (path.empty())
    return fail(ErrorCode::usage,
                "neither --config nor SORTIE_CONFIG is given; start it with `sortie run CONFIG`");
  SORTIE_ASSIGN_OR_RETURN(config::LoadedJob loaded, config::load_job(path));
  config::JobConfig& job = loaded.job;
  log::init("sortie-train", log::level_named(job.logger.log_level));
  std::error_code ignored;
  const char* home = std::getenv("HOME");
  config::resolve_paths(job, std::filesystem::current_path(ignored).string(), home ? home : "/");
  const config::JobConfig told = job;  // the same on every host; where staged files are is not
  if (const char* stage = std::getenv("SORTIE_STAGE")) config::resolve_stage(job, stage);
  if (job.trainer.threads > 0) rank.threads = static_cast<int>(job.trainer.threads);
  omp_set_num_threads(rank.threads);

  const CpuFacts cpu = cpu_facts();
  SORTIE_ASSIGN_OR_RETURN(const DType precision, choose_precision(job.model.precision, cpu));
  const config::BatchOutcome batch = config::resolve_batch(job.topology, rank.world_size);
  if (!batch.violations.empty())
    return fail(ErrorCode::config,
                fmt::format("{}: {}", batch.violations[0].keys[0], batch.violations[0].message));
  SORTIE_ASSIGN_OR_RETURN(const auto training, open_training(job, batch.plan));
  SORTIE_ASSIGN_OR_RETURN(const auto validation, open_validation(job));
  SORTIE_ASSIGN_OR_RETURN(const std::string build, build_hash());
  if (rank.world_size > 1) {
    SORTIE_ASSIGN_OR_RETURN(auto mpi, make_mpi_communicator(rank.rank, rank.world_size));
    end.set_communicator(std::move(mpi));
  }
  SORTIE_TRY(resolve_epochs(job, batch.plan, *training));
  SORTIE_TRY(
      check_start(end.communicator(), rank, told, build, *training, validation.get(), precision));
  const std::string crowded = crowded_hosts(end.communicator(), rank);
  if (rank.rank == 0 && !crowded.empty()) end.events().send({{"type", "note"}, {"text", crowded}});
  Trainer trainer(job, batch.plan, rank, end.communicator(), end.events(), *training,
                  validation.get(), cpu, precision, build);
  const Result<> outcome = end.guard([&] { return trainer.run(); });
  end.events().flush();
  return outcome;
}

}  // namespace

void add_train_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("train", "Train, as one rank of a job (what `sortie run CONFIG` starts)");
  auto config = std::make_shared<std::string>();
  command->add_option("--config", *config, "Config file; without it SORTIE_CONFIG");
  command->callback([config, &exit_code] {
    RankEnd end;
    exit_code = end.exit_code_of([&] { return train(*config, end); });
  });
}

}  // namespace sortie::trainer
