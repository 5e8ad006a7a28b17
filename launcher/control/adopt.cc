#include "launcher/control/adopt.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "common/base/exit_code.h"
#include "common/config/load.h"
#include "common/config/secret.h"
#include "launcher/console/console.h"
#include "launcher/control/attach.h"
#include "launcher/control/control_client.h"
#include "launcher/control/detach.h"
#include "launcher/control/held_ranks.h"
#include "launcher/control/own_folder.h"
#include "launcher/control/run_index.h"
#include "launcher/control/run_record.h"
#include "launcher/host/bootstrap.h"
#include "launcher/plan/plan_container.h"
#include "launcher/plan/secrets.h"
#include "launcher/recovery/attempt_events.h"
#include "launcher/recovery/spares.h"
#include "launcher/run/attempt_folder.h"
#include "launcher/run/run_command.h"
#include "launcher/run/run_folder.h"
#include "launcher/run/run_journal.h"
#include "launcher/sites/site_runs.h"
#include "launcher/view/run_view.h"

namespace sortie::launcher {
LaunchPlan adopted_plan(const RunRecord& record, const config::JobConfig& job) {
  LaunchPlan plan;
  plan.attempt = record.attempt;
  for (const RunRecord::Host& host : record.hosts) {
    HostPlan out;
    out.name = host.name;
    out.node_rank = static_cast<std::uint32_t>(plan.hosts.size());
    for (std::size_t i = 0; i < host.ranks.size(); ++i) {
      out.ranks.emplace_back().rank = host.ranks[i];
      out.ranks.back().slot = host.slots[i];
    }
    plan.hosts.push_back(std::move(out));
  }
  plan.argv = record.argv;
  plan.world_size = record.world_size;
  // Needed when a lost host is swept: its containers are removed, too.
  if (job.runner.container.used()) plan.container = container_spec(job.runner);
  return plan;
}

namespace {

/// Whether another supervisor could continue a run of `job`: hosts hold its ranks, or another
/// attempt is possible.
bool adoptable(const config::JobConfig& job) {
  return job.runner.on_launcher_loss != "kill" || job.recovery.max_restarts > 0;
}

/// Whether a new supervisor may take over: the old one is dead, or alive but silent (stopped).
Result<> may_adopt(const RunRecord& record, const config::JobConfig& job) {
  const SupervisorFacts& boss = record.supervisor;
  if (!adoptable(job))
    return fail(ErrorCode::lost,
                fmt::format("{}: its hosts have ended their ranks: runner.on_launcher_loss was "
                            "\"kill\"; nothing is left to adopt",
                            record.id));
  if (!boss.alive) return {};
  if (boss.elsewhere())
    return fail(ErrorCode::usage, fmt::format("{}: its supervisor (pid {}) lives on {}; use sortie "
                                              "there",
                                              record.id, boss.pid, boss.machine));
  auto client = ControlClient::connect(record.path, boss.epoch);
  const nlohmann::json question = {{"op", "status"}};
  if (client && client->ask(question))
    return fail(ErrorCode::usage,
                fmt::format("{0}: its supervisor ({1}) lives; use `sortie attach {0}`", record.id,
                            boss.process()));
  // It does not answer, and its host is not known: a second supervisor could be the result.
  if (boss.pid == 0)
    return fail(ErrorCode::lost, fmt::format("{}: it may have a supervisor: {}", record.id,
                                             help_without_file(record.path, boss)));
  return {};
}

std::vector<config::HostSlots> hosts_of(const RunRecord& record) {
  std::vector<config::HostSlots> hosts;
  for (const RunRecord::Host& host : record.hosts) hosts.push_back({host.name, host.slots});
  return hosts;
}

/// Whether `text`, from a file of a run, may have had other bytes. These files have only UTF-8: any
/// other byte is stored as U+FFFD.
bool may_differ(std::string_view text) {
  return text.find("\uFFFD") != text.npos;
}

/// What a run has stored for further attempts.
struct Stored {
  LauncherFacts facts = launcher_facts();  // working directory and variables of the first attempt
  std::vector<std::string> secrets = {};   // variables whose values are not stored
  std::string inexact = {};  // an argument or variable that is not stored exactly; empty = none
};

Stored stored_in(const RunRecord& record) {
  Stored stored;
  LauncherFacts& facts = stored.facts;
  for (std::size_t i = 0; i < record.argv.size(); ++i)
    if (may_differ(record.argv[i]))
      stored.inexact = fmt::format("word {} of runner.program", i + 1);
  const auto text = read_file(record.path / "plan.json");
  const nlohmann::json plan =
      text ? nlohmann::json::parse(*text, nullptr, false) : nlohmann::json();
  if (!plan.is_object()) return stored;
  if (const auto it = plan.find("work_dir"); it != plan.end() && it->is_string())
    facts.work_dir = it->get<std::string>();
  if (may_differ(facts.work_dir)) stored.inexact = "the working folder";
  const auto variables = plan.find("env");
  if (variables == plan.end() || !variables->is_object()) return stored;
  for (const auto& [name, value] : variables->items())
    if (value == config::kSecretShown) {
      stored.secrets.push_back(name);
    } else if (value.is_string()) {
      facts.environment.emplace_back(name, value.get<std::string>());
      if (may_differ(facts.environment.back().second)) stored.inexact = "variable " + name;
    }
  return stored;
}

/// Returns the history of attempts from the journal. An attempt whose hosts do not hold their
/// ranks, or whose ranks had not started, ended with its supervisor; that is now added to the
/// journal. `gone_by`: a time at which that supervisor was dead, in seconds since 1970.
SuperviseParts::Adopted adopted_story(const RunRecord& record, const config::JobConfig& job,
                                      double gone_by, RunFolder& folder) {
  const RunView view = read_journal(record.path);
  SuperviseParts::Adopted story;
  story.cgroups = view.cgroups;
  for (const AttemptView& attempt : view.attempts)
    if (attempt.ended) story.history.push_back(attempt.end);
  const auto first = read_run(record.path, 1);
  if (first) story.places = hosts_of(*first);
  story.configured_ranks = first ? first->world_size : record.world_size;
  const TrainingView training = read_training(record.path);
  AttemptEnd now;
  now.attempt = record.attempt;
  now.started = view.started && view.attempt() == record.attempt;
  now.begun = view.attempts.empty() ? view.begun : view.begun + view.attempts.back().begun;
  if (training.start) now.begun_at_step = static_cast<std::uint64_t>(training.start->step);
  if (training.checkpoint)
    now.committed_step = static_cast<std::uint64_t>(training.checkpoint->step);
  const bool told = !story.history.empty() && story.history.back().attempt >= record.attempt;
  const bool killed = job.runner.on_launcher_loss == "kill";
  // Its hosts may not have been contacted yet: they hold nothing, and that is not their failure. If
  // some do hold ranks, the next attempt ends them.
  const bool untold = view.attempt() < record.attempt;  // the journal does not mention the attempt
  const bool unborn = (untold || !view.started) && job.recovery.max_restarts > 0;
  if (!told && (killed || unborn)) {
    now.exit_code = kExitLost;
    now.failure = FailureClass::hardware;
    now.cause =
        fmt::format("the supervisor of the run was lost{}",
                    killed ? "; hosts have ended their ranks" : " before its ranks had started");
    now.ended = std::max(now.begun, gone_by);
    if (untold)
      folder.event(
          JournalEvent::attempt,
          event_fields(AttemptBegin{record.attempt, record.host_names(), record.world_size}));
    folder.event(JournalEvent::attempt_end, event_fields(now));
    story.history.push_back(std::move(now));
  } else if (!told) {
    story.before = std::move(now);
  }
  story.between_attempts = !story.history.empty() && story.history.back().attempt >= record.attempt;
  return story;
}

/// Returns the state of each site of the run, with the state from which its loop continues. The
/// folder of a site is written to only after it has been moved into the result.
Result<std::vector<SiteOfRun>> adopted_sites(const RunRecord& record, const config::JobConfig& job,
                                             double gone_by, const std::optional<Error>& no_plan) {
  std::vector<SiteOfRun> sites;
  SORTIE_ASSIGN_OR_RETURN(const std::vector<config::HostSlots> configured,
                          config::job_hosts(job.runner));
  const auto count = static_cast<std::int64_t>(config::sites_of(configured).size());
  const auto spares = job_spares(job, {});
  for (const std::string& name : sites_in(record.path)) {
    SORTIE_ASSIGN_OR_RETURN(const RunRecord part, read_run(site_folder(record.path, name)));
    PlannedSite planned;
    planned.place = {name, static_cast<std::int64_t>(sites.size()), count};
    planned.plan = adopted_plan(part, job);
    planned.hosts = hosts_of(part);
    for (config::HostSlots& host : planned.hosts) host.site = name;
    if (spares)
      for (const config::HostSlots& spare : *spares)
        if (spare.site == name) planned.spares.push_back(spare);
    SORTIE_ASSIGN_OR_RETURN(
        RunFolder folder,
        RunFolder::open_site(record.path, name, run_id_of_site(record.id, planned.place.index),
                             job.logger.tensorboard, part.attempt));
    SiteOfRun& site = sites.emplace_back(SiteOfRun{std::move(planned), std::move(folder)});
    if (const auto first = read_run(part.path, 1)) site.configured_ranks = first->world_size;
    std::error_code ignored;
    const RunView view = read_journal(part.path);
    site.removed = std::filesystem::exists(part.path / "removed", ignored);
    if (view.ended) {  // it has ended for good
      site.ended = Verdict();
      site.ended->exit_code = view.exit_code.value_or(0);
      site.ended->text = view.cause;
      site.ended->shown = true;
      continue;
    }
    SuperviseParts::Adopted story = adopted_story(part, job, gone_by, site.folder);
    for (config::HostSlots& place : story.places) place.site = name;
    story.no_plan = no_plan;
    site.adopt = [story = std::move(story)](RunLoop::Parts& parts) { adopt_into(parts, story); };
  }
  return sites;
}

/// A run that can be adopted, and its job.
struct Orphan {
  RunRecord record;
  config::LoadedJob loaded;
  double gone_by = 0;  // at this time its supervisor was dead
};

int supervise_adopted(const Orphan& orphan, StartNotice& notice) {
  const RunRecord& record = orphan.record;
  const config::JobConfig& job = orphan.loaded.job;
  const double gone_by = orphan.gone_by;
  const auto give_up = [&](const Error& error) {
    const int code = exit_code_for(error.code);
    notice.failed(code, error.message);
    return code;
  };
  const auto binary = open_runner_binary();
  if (!binary) return give_up(binary.error());
  RunFolder folder = RunFolder::open(record.path, job.logger.tensorboard, record.attempt);
  const auto lock = SupervisorLock::take(record.path, record.supervisor.epoch + 1);
  if (!lock) return give_up(lock.error());
  if (auto left = notice.leave_terminal(record.path); !left) return give_up(left.error());
  Console::Style style = Console::detect();
  style.ranks = false;
  Console console(style);
  console.set_training(read_training(record.path));
  const LaunchPlan plan = adopted_plan(record, job);
  config::JobConfig with_secrets = job;
  const Stored stored = stored_in(record);
  const LauncherFacts& facts = stored.facts;
  // Running ranks have their secrets; only another attempt needs them again.
  const bool has_sites = !sites_in(record.path).empty();
  SuperviseParts::Adopted story;
  if (!has_sites) story = adopted_story(record, job, gone_by, folder);
  if (job.recovery.max_restarts > 0) {
    auto filled = fill_in_secrets(with_secrets.runner, facts.environment);
    if (filled)
      filled = check_passed_secrets(with_secrets.runner, stored.secrets, facts.environment);
    if (filled && !stored.inexact.empty())
      filled =
          fail(ErrorCode::data,
               fmt::format("{}: {} has bytes that are not UTF-8, which its files do not keep, "
                           "so no other attempt has the same; start it again with `sortie run`",
                           record.id, stored.inexact));
    if (!filled) story.no_plan = std::move(filled).error();
  }
  const std::vector<config::HostSlots> hosts = hosts_of(record);
  std::vector<SiteOfRun> sites;
  if (has_sites) {
    auto read = adopted_sites(record, with_secrets, gone_by, story.no_plan);
    if (!read) return give_up(read.error());
    sites = std::move(*read);
  }
  const auto spares = job_spares(job, {});
  if (!spares) console.error(spares.error().message);
  return supervise({with_secrets, plan, facts, hosts,
                    spares.value_or(std::vector<config::HostSlots>()), *binary, folder, *lock,
                    console, &notice, std::move(story), has_sites ? &sites : nullptr});
}

Result<Orphan> read_orphan(RunRecord record) {
  SORTIE_TRY(check_own_folder(record.path));
  SORTIE_ASSIGN_OR_RETURN(auto loaded,
                          config::load_job((record.path / "config.toml").string(), {}));
  SORTIE_TRY(may_adopt(record, loaded.job));
  // Read before this process writes there. The run may be adopted days after its supervisor died.
  const std::chrono::duration<double> until_next = kSignEvery;
  const double gone_by = std::min(unix_time(), last_sign_of_life(record.path) + until_next.count());
  return Orphan{std::move(record), std::move(loaded), gone_by};
}

/// Starts a supervisor in a separate process; returns 0 once it supervises the run. `watch`: its
/// watcher.
int start_adopter(const Orphan& orphan, const WatchOrder& watch) {
  return run_detached([&](StartNotice& notice) { return supervise_adopted(orphan, notice); }, watch,
                      /*announce=*/false);
}

Result<int> adopt_and_attach(AttachRequest request) {
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(request.log_dir));
  SORTIE_ASSIGN_OR_RETURN(const auto run, index.find(request.run));
  SORTIE_ASSIGN_OR_RETURN(RunRecord record, read_run(run));
  request.run = run.string();
  if (record.result) return attach(request);
  SORTIE_ASSIGN_OR_RETURN(const Orphan orphan, read_orphan(std::move(record)));
  request.since_ms = static_cast<std::int64_t>(unix_time() * 1000);
  const int started = start_adopter(orphan, watch_order(orphan.loaded.job));
  return started == kExitOk ? attach(request) : started;
}

}  // namespace

int adopt_run(const std::filesystem::path& run, StartNotice& notice) {
  const auto orphan = [&]() -> Result<Orphan> {
    SORTIE_ASSIGN_OR_RETURN(RunRecord record, read_run(run));
    return read_orphan(std::move(record));
  }();
  if (orphan) return supervise_adopted(*orphan, notice);
  const int code = exit_code_for(orphan.error().code);
  notice.failed(code, orphan.error().message);
  return code;
}

Result<int> adopt_to_stop(RunRecord record) {
  SORTIE_ASSIGN_OR_RETURN(const Orphan orphan, read_orphan(std::move(record)));
  // Until the new supervisor is in charge, Ctrl-C is passed on to it; then this process handles it
  // again.
  sigset_t mask;
  struct sigaction on_int {
  }, on_term{};
  ::sigprocmask(SIG_SETMASK, nullptr, &mask);
  ::sigaction(SIGINT, nullptr, &on_int);
  ::sigaction(SIGTERM, nullptr, &on_term);
  const int started = start_adopter(orphan, {});
  ::sigaction(SIGINT, &on_int, nullptr);
  ::sigaction(SIGTERM, &on_term, nullptr);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  return started;
}

WatchOrder watch_order(const config::JobConfig& job) {
  if (!adoptable(job)) return {};
  return {job.recovery.supervisor_restarts, adopt_run};
}

int adopt(const AttachRequest& request) {
  const auto code = adopt_and_attach(request);
  if (code) return *code;
  Console(Console::detect()).error(code.error().message);
  return exit_code_for(code.error().code);
}

}  // namespace sortie::launcher
