#include "trainer/cli/train_command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "common/config/fields.h"
#include "common/config/load.h"
#include "common/config/stage.h"
#include "common/config/validate.h"
#include "common/training/event.h"
#include "trainer/checkpoint/file_ops.h"
#include "trainer/cli/open_data.h"
#include "trainer/cli/output_options.h"
#include "trainer/cli/progress.h"
#include "trainer/cli/site_setup.h"
#include "trainer/loop/crowded_hosts.h"
#include "trainer/loop/device_agreement.h"
#include "trainer/loop/device_room.h"
#include "trainer/loop/rank_end.h"
#include "trainer/loop/startup_check.h"
#include "trainer/loop/trainer.h"
#include "trainer/loop/world.h"
#include "trainer/metrics/progress_reporter.h"
#include "trainer/parallel/device_communicator.h"
#include "trainer/samples/document_ends.h"
#include "trainer/samples/token_ids.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace {

Result<> check_start(Communicator& communicator, const RankContext& rank,
                     const config::JobConfig& job, const std::string& build,
                     const SampleSource& training, const std::vector<ValidationSet>& validation,
                     const CpuFacts& cpu, const ComputeDevice& compute, DType precision) {
  config::JobConfig shared = job;
  shared.runner = {};
  std::vector<Agreement> agreements = {
      {"build", build, "copy the same sortie-train to every host, or share the folder"},
      {"config", sha256_hex(config::to_toml(shared)), "start all ranks with one config"},
      {"training data", training.fingerprint(),
       "copy the same token files to every host, or share the folder"},
      {"device", compute.name(),
       "results of different devices differ in their last bits, and replicas with them; use hosts "
       "of one kind, or set trainer.device to what all of them have"},
      {"libraries of the GPU", compute.libraries,
       "install one build of Sortie and one set of CUDA's libraries on all hosts"},
      {"instruction set", compute.gpu ? "" : cpu.isa,
       "results of such CPUs differ in their last bits, and replicas with them; use hosts of one "
       "kind, or limit all to the narrower set, as with --set runner.env.ONEDNN_MAX_CPU_ISA=AVX2"},
      {"precision", std::string(dtype_name(precision)),
       "hosts differ in their CPUs; set model.precision to f32"}};
  for (const ValidationSet& set : validation)
    agreements.push_back({"validation data " + set.name, set.source->fingerprint(),
                          "copy the same files to every host, or share the folder"});
  return check_agreement(communicator, rank, agreements);
}

/// Ranks without a GPU open another world than ranks with one, so this comes before it.
Result<> agree_on_device(const std::string& wanted, const RankContext& rank, RankEnd& end) {
  SORTIE_ASSIGN_OR_RETURN(auto met, meet_before_world(wanted, rank));
  if (met) end.set_communicator(std::move(met));
  SORTIE_ASSIGN_OR_RETURN(const std::string difference, compare_devices(end.communicator(), rank));
  if (difference.empty()) return {};
  return end.shared(fail(ErrorCode::unsupported, difference));
}

/// Only rank 0 writes checkpoints, so only it needs the tokenizer's files.
Result<RunTokenizer> find_tokenizer(const config::JobConfig& job, const RankContext& rank,
                                    const OpenedData& data) {
  if (rank.rank != 0) return RunTokenizer{};
  SORTIE_ASSIGN_OR_RETURN(RunTokenizer tokenizer, find_run_tokenizer(job));
  if (!tokenizer.files)
    log::warning(
        "data.tokenizer: it is empty and the token files have no manifest, so checkpoints "
        "get the tokenizer of the weights that training starts from, or none");
  tokenizer.chatml = data.reads_chatml;
  if (tokenizer.files) tokenizer.files->form.chatml = data.trains_chatml;
  return tokenizer;
}

/// Converts trainer.train_epochs to steps, and checks the schedule with them.
Result<> resolve_epochs(config::JobConfig& job, const config::BatchPlan& batch,
                        const SampleSource& training, std::int64_t sites) {
  if (job.trainer.train_epochs == 0) return {};
  // The sites share the samples.
  const std::int64_t count = std::max<std::int64_t>(sites, 1);
  const std::int64_t samples = job.trainer.train_epochs * training.samples_per_epoch();
  job.trainer.train_iterations = config::steps_for_samples(batch, (samples + count - 1) / count);
  config::JobConfig known = job;
  known.trainer.train_epochs = 0;
  const std::vector<config::Violation> violations = config::check_training(known);
  if (violations.empty()) return {};
  return fail(ErrorCode::config, fmt::format("{} epochs are {} steps: {}: {}",
                                             job.trainer.train_epochs, job.trainer.train_iterations,
                                             violations[0].keys[0], violations[0].message));
}

Result<> check_room(const config::JobConfig& job, const config::BatchPlan& batch,
                    const RankContext& rank, DType precision, RankEnd& end) {
  PlanOptions options;
  options.micro_batch_size = batch.micro_batch_size;
  options.world_size = rank.world_size;
  options.rank = rank.rank;
  options.dtype = precision;
  options.threads = rank.threads;
  options.gpu = rank.compute.gpu.has_value();
  SORTIE_ASSIGN_OR_RETURN(const std::int64_t planned,
                          check_device_room(job, options, rank.compute));
  end.set_planned_on_gpu(planned);
  return {};
}

void tell_notes(const std::vector<std::string>& notes, EventSink& events) {
  for (const std::string& note : notes) {
    if (note.empty()) continue;
    events.send(training::to_json(training::NoteEvent{note}));
    events.say(note);
  }
}

struct RankJob {
  config::JobConfig job;
  config::JobConfig told;  // the same on every host, unlike the paths of staged files in `job`
  std::optional<outer::Site> site;
};

/// Reads the config, checks it and resolves its paths. Sets the number of threads of `rank` if the
/// config does.
Result<RankJob> load_rank_job(const std::string& path, RankContext& rank) {
  if (path.empty())
    return fail(ErrorCode::usage,
                "neither a config file nor SORTIE_CONFIG is given; start it with `sortie run "
                "CONFIG`, without runner.program, or name the file: `sortie-train train CONFIG`");
  // Applied even without a launcher, or if the launcher did not know that this is sortie-train.
  const auto rules = [](const config::LoadedJob& read) {
    return config::validate_training(read.job);
  };
  SORTIE_ASSIGN_OR_RETURN(config::LoadedJob loaded, config::load_job(path, {}, rules));
  config::JobConfig& job = loaded.job;
  init_log(job.logger.log_level);
  std::error_code ignored;
  const char* home = std::getenv("HOME");
  config::resolve_paths(job, std::filesystem::current_path(ignored).string(), home ? home : "/");
  config::JobConfig told = job;
  if (const char* stage = std::getenv("SORTIE_STAGE")) config::resolve_stage(job, stage);
  if (job.trainer.threads > 0) rank.threads = static_cast<int>(job.trainer.threads);
  if (rank.sites > 0 && rank.socket_path.empty())
    return fail(ErrorCode::config,
                "SORTIE_SITES: without SORTIE_SOCKET there is no coordinator of rounds; start "
                "the job with `sortie run`");
  std::optional<outer::Site> site = site_of_rank(job, rank);
  return RankJob{job_of_site(std::move(job), rank), std::move(told), std::move(site)};
}

Result<> train(const std::string& config_path, RankEnd& end) {
  std::signal(SIGUSR1, SIG_IGN);  // requests a save; before the first step there is nothing to save
  SORTIE_ASSIGN_OR_RETURN(RankContext rank, rank_context_from_environment());
  end.set_rank(rank);
  SORTIE_ASSIGN_OR_RETURN(EventSink events, EventSink::open(rank.socket_path));
  end.set_events(std::move(events));
  std::unique_ptr<ProgressReporter> reporter;
  if (!rank.socket_path.empty()) {
    SORTIE_ASSIGN_OR_RETURN(
        reporter, ProgressReporter::start(rank.socket_path, *rank.marks, file_ops::operations));
  }
  const std::string path = config_path.empty() ? rank.config_path : config_path;
  SORTIE_ASSIGN_OR_RETURN(RankJob loaded, load_rank_job(path, rank));
  config::JobConfig& job = loaded.job;
  log::debug("config {}: rank {} of {}, {} threads", path, rank.rank, rank.world_size,
             rank.threads);

  const CpuFacts cpu = cpu_facts();
  SORTIE_ASSIGN_OR_RETURN(
      rank.compute,
      choose_device(job.trainer.device, place_from_environment(rank.local_rank, rank.local_ranks),
                    "trainer.device"));
  log::debug("rank {} computes on {} ({})", rank.rank, rank.compute.name(),
             rank.compute.device.to_string());
  SORTIE_TRY(agree_on_device(job.trainer.device, rank, end));
  SORTIE_ASSIGN_OR_RETURN(const DType precision,
                          choose_precision(job.model.precision, cpu, rank.compute.gpu));
  SORTIE_TRY(check_device_limits(job.model, rank.compute.device));
  const config::BatchOutcome batch = config::resolve_batch(job.topology, rank.world_size);
  if (!batch.violations.empty())
    return fail(ErrorCode::config,
                fmt::format("{}: {}", batch.violations[0].keys[0], batch.violations[0].message));
  ProgressLine reading("train");
  SORTIE_ASSIGN_OR_RETURN(const OpenedData data,
                          open_data(job, batch.plan, rank.sites, rank.threads,
                                    rank.rank == 0 ? reading.callback() : OnProgress()));
  reading.finish();
  SORTIE_ASSIGN_OR_RETURN(RunTokenizer tokenizer, find_tokenizer(job, rank, data));
  SORTIE_TRY(check_token_ids(job));
  SORTIE_ASSIGN_OR_RETURN(const std::vector<std::string> unseparated,
                          check_document_ends(job, tokenizer));
  SORTIE_ASSIGN_OR_RETURN(const std::string build, build_hash());
  SORTIE_ASSIGN_OR_RETURN(auto world,
                          make_world(job.topology.backend, rank, end.take_communicator()));
  end.set_communicator(std::move(world));
  rank.marks->count_collectives(end.communicator().begun(),
                                long_wait_between_devices(end.communicator()));
  SORTIE_TRY(resolve_epochs(job, batch.plan, *data.training, rank.sites));
  SORTIE_TRY(end.shared(check_start(end.communicator(), rank, loaded.told, build, *data.training,
                                    data.validation_sets, cpu, rank.compute, precision)));
  SORTIE_TRY(end.shared(
      share_failure(end.communicator(), rank, check_room(job, batch.plan, rank, precision, end))));
  SORTIE_TRY(
      end.shared(share_failure(end.communicator(), rank, check_profile_path(job.profiler, rank))));
  std::vector<std::string> notes = data.notes;
  notes.insert(notes.end(), unseparated.begin(), unseparated.end());
  notes.push_back(crowded_hosts(end.communicator(), rank));
  if (rank.rank == 0) tell_notes(notes, end.events());
  Trainer trainer(job, batch.plan, rank, end.communicator(), end.events(), *data.training,
                  data.validation_sets, cpu, precision, build);
  trainer.set_tokenizer(std::move(tokenizer));
  if (loaded.site) trainer.set_site(*loaded.site);
  end.set_last_save([&] { return trainer.save_last(); });
  const Result<> outcome = end.guard([&]() -> Result<> {
    SORTIE_TRY(trainer.check_own());
    SORTIE_TRY(end.shared(trainer.choose_start()));
    return trainer.run();
  });
  end.set_last_save(nullptr);
  end.events().flush();
  return outcome;
}

}  // namespace

void add_train_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("train", "Train, as one rank of a job (what `sortie run CONFIG` starts)");
  auto config = std::make_shared<std::string>();
  command->add_option("config,--config", *config, "Config file; without it SORTIE_CONFIG");
  command->callback([config, &exit_code] {
    RankEnd end;
    exit_code = end.exit_code_of([&] { return train(*config, end); });
  });
}

}  // namespace sortie::trainer
