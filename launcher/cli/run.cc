// `sortie run` and `sortie plan`.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "common/base/json_text.h"
#include "common/cli/tree.h"
#include "launcher/cli/verb.h"
#include "launcher/console/console.h"
#include "launcher/control/adopt.h"
#include "launcher/control/detach.h"
#include "launcher/report/report.h"
#include "launcher/supervise/survey.h"
#include "launcher/view/run_view.h"

namespace sortie::launcher {
namespace {

constexpr const char* kRunFooter = R"(Examples:
  sortie run configs/quickstart.toml                      train on this machine
  sortie run job.toml --hosts 'gpu[01-04]' --slots 8      the job of a config on four hosts, with 8 ranks each
  sortie run --hosts 'gpu[01-04]' --slots 8 -- ./my_mpi   an MPI program, without mpirun
  sortie run --shell -- 'ulimit -c 0; exec ./train.sh'    each rank runs the line with /bin/sh
  sortie run --detach job.toml                            start it, print its id, and return

Everything after -- is the program and its arguments. They reach the ranks unchanged.
)";

constexpr const char* kPlanFooter = R"(Examples:
  sortie plan job.toml                                    ranks, devices, memory and commands
  sortie plan job.toml --set topology.micro_batch_size=8  the same with another value
  sortie plan job.toml --connect                          connects to the hosts for their CPUs and addresses
  sortie plan job.toml --mttf-node-hours 3700             how often to save, how many spares
  sortie plan job.toml --suggest --rates measured.json    predicted step times of the possible layouts
  sortie plan job.toml --step-time 0.8 --site-rate 50Mbit/s  sites: useful time of each level
  sortie plan --json --hosts h1,h2 -- ./my_mpi            as JSON
)";

/// Whether `sortie explain` knows the exit code of a run: of a program other than sortie-train only
/// those that shells define, from 124 on.
bool can_be_explained(int exit_code, const std::vector<std::string>& program,
                      const std::filesystem::path& run) {
  if (exit_code >= kFirstOfShells || program.empty()) return true;
  if (std::filesystem::path(program.front()).filename() == "sortie-train") return true;
  return !has_code_of_rank(read_journal(run));
}

/// Suggests next steps after a run. A run that was interrupted by the user needs no explanation.
std::string after_run(const CLI::App& root, int exit_code, const std::vector<std::string>& program,
                      const std::filesystem::path& run) {
  const std::string id = run.filename().string();
  std::vector<std::vector<std::string>> commands;
  const bool failed = exit_code != kExitOk && exit_code != kExitInterrupted;
  if (failed) commands.push_back({"report", id});
  commands.push_back({"logs", id});
  if (failed && can_be_explained(exit_code, program, run))
    commands.push_back({"explain", std::to_string(exit_code)});
  if (!failed) commands.push_back({"report", id});
  return cli::next_steps(root, commands);
}

/// Suggests next steps after `plan`, for the job that was planned.
std::vector<std::vector<std::string>> after_plan(const JobOptions& options) {
  return {job_command("check", options), job_command("run", options)};
}

/// Validates a run name, which is shown in tables and printed in commands. Returns the error, or
/// "".
std::string run_name(const std::string& name) {
  constexpr std::size_t kMaxBytes = 100;
  if (!name.empty() && name.size() <= kMaxBytes && printable(name) == name) return "";
  return fmt::format("a name has 1 to {} characters, and no control characters", kMaxBytes);
}

Result<> survey(PlannedJob& job) {
  SORTIE_ASSIGN_OR_RETURN(const RunnerBinary binary, open_runner_binary());
  return survey_hosts(job.loaded.job, binary, trainer_beside(), job.plan);
}

/// Plans the job. Error if there is neither a config nor a program.
Result<PlannedJob> planned(std::string_view verb, JobOptions& options, const Program& program) {
  options.program = program;
  if (options.config.empty() && options.program.empty())
    return fail(
        ErrorCode::usage,
        fmt::format("sortie: {}: neither a config file nor a program was given; give a config "
                    "(job.toml) or a program (--hosts LIST -- PROGRAM)",
                    verb));
  return plan_job(options);
}

/// Plans for `plan --suggest`, which needs the batch size of a step but not the layout: a job with
/// an invalid layout gets the simplest one. Returns the error of the original job.
Result<PlannedJob> planned_for_layouts(JobOptions& options, const Program& program) {
  auto job = planned("plan", options, program);
  if (job) return job;
  JobOptions simplest = options;
  for (const char* key :
       {"data_parallel_size=0", "tensor_parallel_size=1", "sequence_parallel=false",
        "pipeline_parallel_size=1", "pipeline_interleave=1", "pipeline_schedule=1f1b",
        "pipeline_stage_layers=[]", "micro_batch_size=1", "gradient_accumulation_steps=0"})
    simplest.overrides.push_back(std::string("topology.") + key);
  auto other = planned("plan", simplest, program);
  return other ? std::move(other) : std::move(job);
}

Result<std::string> shown_plan(const PlannedJob& job, const JobOptions& options, bool json,
                               const AskedReliability& asked, const AskedSites& sites) {
  if (config::sites_of(job.hosts).size() > 1) {
    // --step-time also applies to the plan of sites; only other options request reliability.
    AskedReliability others = asked;
    others.options.step_time.reset();
    if (wants_reliability(others))
      return fail(ErrorCode::usage,
                  "plan --reliability: it is about one site, and this job has several; name the "
                  "hosts of one with --hosts");
    return plan_of_sites(job, options, sites, asked.options.step_time, json);
  }
  if (!wants_reliability(asked)) return json ? plan_json_text(job.plan) : plan_text(job.plan);
  const Reliability found =
      reliability(reliability_inputs(job.plan, job.loaded.job, asked.options));
  if (!json) return plan_text(job.plan) + reliability_text(found);
  nlohmann::ordered_json out = plan_json(job.plan);
  out["reliability"] = reliability_json(found);
  return json_text(out, 2) + "\n";
}

}  // namespace

void add_run_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program) {
  const auto options = std::make_shared<JobOptions>();
  CLI::App* run = root.add_subcommand("run", "Start and supervise a job on its hosts");
  run->footer(kRunFooter);
  add_job_options(*run, *options);
  run->add_option("--name", options->name,
                  "Name of the run in `ps`; default: that of the config file or the program")
      ->check(run_name);
  add_shell_flag(*run, *options);
  const auto detach = std::make_shared<bool>(false);
  run->add_flag("--detach", *detach,
                "Return once all ranks run; the run survives this terminal and login");
  verbs.push_back({run,
                   [options, detach, &program, &root] {
                     auto job = planned("run", *options, program);
                     if (!job) return print_error(job.error());
                     job->next_steps = [&root, ranks = job->loaded.job.runner.program](
                                           int exit_code, const std::filesystem::path& folder) {
                       return after_run(root, exit_code, ranks, folder);
                     };
                     if (!*detach) return run_job(*job);
                     return run_detached(
                         [&job](StartNotice& notice) { return run_job(*job, &notice); },
                         watch_order(job->loaded.job));
                   },
                   true});

  const auto json = std::make_shared<bool>(false);
  CLI::App* plan = root.add_subcommand(
      "plan",
      "Show ranks, devices, memory and commands of a job; contacts no host without --connect");
  plan->footer(kPlanFooter);
  add_job_options(*plan, *options);
  add_shell_flag(*plan, *options);
  const auto connect = std::make_shared<bool>(false);
  plan->add_flag("--connect", *connect,
                 "Make every host prepare the job without starting it; shows the CPUs of each "
                 "rank and MASTER_ADDR");
  plan->add_flag("--json", *json, "As JSON (schema sortie/plan/1)");
  const auto asked = std::make_shared<AskedReliability>();
  add_reliability_options(*plan, *asked);
  const auto layouts = std::make_shared<AskedSuggestions>();
  add_suggest_options(*plan, *layouts);
  const auto sites = std::make_shared<AskedSites>();
  add_site_options(*plan, *sites);
  verbs.push_back(
      {plan,
       [options, json, connect, asked, layouts, sites, &program, &root] {
         auto job = layouts->wanted ? planned_for_layouts(*options, program)
                                    : planned("plan", *options, program);
         if (!job) return print_error(job.error());
         if ((*connect || layouts->wanted) && config::sites_of(job->hosts).size() > 1)
           return print_error(
               {ErrorCode::usage, fmt::format("plan --{}: it is about one site, and this job has "
                                              "several; name the hosts of one with --hosts",
                                              *connect ? "connect" : "suggest")});
         if (*connect)
           if (auto good = survey(*job); !good) return print_error(good.error());
         if (layouts->wanted) {
           const auto text = suggested(*job, *layouts, *json);
           return text ? print_text(*text) : print_error(text.error());
         }
         const auto shown = shown_plan(*job, *options, *json, *asked, *sites);
         if (!shown) return print_error(shown.error());
         const int code = print_text(*shown);
         if (*json) return code;
         if (code == kExitOk) print_next_steps(root, after_plan(*options));
         return code;
       },
       true});
}

}  // namespace sortie::launcher
