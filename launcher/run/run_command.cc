#include "launcher/run/run_command.h"

#include <fmt/format.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <csignal>
#include <nlohmann/json.hpp>

#include "common/asio/run.h"
#include "common/asio/spawn.h"
#include "common/base/exit_code.h"
#include "common/config/hostlist.h"
#include "launcher/console/output_options.h"
#include "launcher/console/terminal_signals.h"
#include "launcher/control/detach.h"
#include "launcher/control/run_control.h"
#include "launcher/control/run_index.h"
#include "launcher/control/run_record.h"
#include "launcher/copy/progress.h"
#include "launcher/nodes/acceptance.h"
#include "launcher/nodes/job_hosts.h"
#include "launcher/nodes/node_store.h"
#include "launcher/plan/secrets.h"
#include "launcher/recovery/spares.h"
#include "launcher/run/ask_trainer.h"
#include "launcher/run/run_loop.h"
#include "launcher/sites/site_runs.h"
#include "launcher/view/training_text.h"
#include "launcher/warm/warm_transport.h"

namespace sortie::launcher {
namespace asio = boost::asio;
namespace fs = std::filesystem;

namespace {

asio::awaitable<void> watch_signals(asio::signal_set& signals, SupervisedRun& run,
                                    Console& console) {
  for (;;) {
    const int number = co_await signals.async_wait(asio::use_awaitable);
    if (number == SIGTSTP)
      console.message(ctrl_z_refusal("`sortie run --detach` leaves the terminal free"));
    else
      run.interrupt(number);
  }
}

/// Replans without asking for the cost of the model again, which would block the I/O thread.
RunLoop::Replan replan_with(LauncherFacts facts) {
  facts.ask_trainer = {};
  return [facts = std::move(facts)](const config::JobConfig& job,
                                    const std::vector<config::HostSlots>& hosts) {
    return make_plan(job, hosts, facts);
  };
}

Result<RunLoop::KnownHosts> hosts_that_are_known() {
  SORTIE_ASSIGN_OR_RETURN(const NodeState state, cordoned_hosts());
  return RunLoop::KnownHosts{state.hosts(), state.breaker_open.has_value()};
}

/// Blocks until everything is on disk, before the end of the run is reported. Ctrl-C ends the
/// process even if the disk hangs.
void wait_for_folder(const RunFolder& folder, Console& console) {
  constexpr std::chrono::seconds kSilence{1};
  if (folder.drain(kSilence)) return;
  console.message(fmt::format("waiting for {} to take {} more; Ctrl-C gives up",
                              folder.path().string(), byte_count(folder.queued_bytes())));
  while (!folder.drain()) {
  }
}

/// The same for what this run has to say about its hosts.
void wait_for_nodes(const FileCalls& file_calls, Console& console) {
  if (file_calls.drain(std::chrono::seconds(1))) return;
  console.message("waiting for the disk of nodes.json; Ctrl-C gives up");
  while (!file_calls.drain(std::chrono::hours(1))) {
  }
}

/// `folders`: those of the sites and, last, that of the run.
void print_verdict(Console& console, const Verdict& verdict,
                   const std::vector<const RunFolder*>& folders) {
  const RunFolder& folder = *folders.back();
  if (!verdict.text.empty()) {
    if (!verdict.shown) console.error(verdict.text);
    if (!verdict.aftermath.empty()) console.message(verdict.aftermath);
  }
  console.say_dropped_lines(folder.id());
  for (const RunFolder* const written : folders)
    if (const auto trouble = written->trouble())
      console.error(fmt::format("run folder: {}{}", trouble->message,
                                written->lost_bytes() == 0
                                    ? ""
                                    : fmt::format("; {} of the ranks' output were lost",
                                                  byte_count(written->lost_bytes()))));
  if (const std::string text = training_summary(
          console.training(), {folder.path(), read_label(folder.path()).name, false});
      !text.empty() && !folder.superseded())
    console.message(text);
  console.message(fmt::format("run {} in {}", folder.id(), folder.path().string()));
}

}  // namespace

LauncherFacts launcher_facts() {
  LauncherFacts facts;
  facts.trainer = program_beside("sortie-train").string();
  facts.ask_trainer = trainer_beside();
  facts.topology = cpu::read_topology("/", cpu::allowed_cpus());
  struct sysinfo info {};
  if (::sysinfo(&info) == 0) facts.memory_bytes = std::uint64_t{info.totalram} * info.mem_unit;
  std::error_code error;
  facts.work_dir = fs::current_path(error).string();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (const auto equals = text.find('='); equals != text.npos)
      facts.environment.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return facts;
}

fs::path program_beside(const char* name) {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path() / name;
}

AskTrainer trainer_beside() {
  return [trainer = program_beside("sortie-train")](const CostQuestion& question) {
    return ask_trainer(trainer, question);
  };
}

Result<RunnerBinary> open_runner_binary() {
  const char* chosen = std::getenv("SORTIE_RUNNER");
  return RunnerBinary::open(chosen ? fs::path(chosen) : program_beside("sortie-runner"));
}

Result<PlannedJob> plan_job(const JobOptions& options) {
  PlannedJob job;
  SORTIE_ASSIGN_OR_RETURN(job.loaded, load_options(options, Purpose::start));
  config::RunnerConfig& runner = job.loaded.job.runner;
  resolve_job_paths(job.loaded.job);
  SORTIE_ASSIGN_OR_RETURN(auto hosts, config::job_hosts(runner));
  SORTIE_ASSIGN_OR_RETURN(job.spares, job_spares(job.loaded.job, hosts));
  if (!options.cordoned_too) SORTIE_TRY(leave_cordoned_out(job.loaded, hosts));
  // Hosts have no groups file, so the trainer gets the expanded names.
  if (std::ranges::any_of(runner.hosts, [](const std::string& line) { return line.contains('@'); }))
    runner.hosts = config::host_lines(hosts);
  job.facts = launcher_facts();
  SORTIE_TRY(fill_in_secrets(runner, job.facts.environment));
  if (config::sites_of(hosts).empty()) {
    SORTIE_ASSIGN_OR_RETURN(job.plan, make_plan(job.loaded.job, hosts, job.facts));
  } else {
    SORTIE_ASSIGN_OR_RETURN(job.sites, plan_sites(job.loaded.job, hosts, job.spares, job.facts));
    job.plan = plan_of_all(job.sites);
  }
  job.hosts = hosts;
  if (job.facts.work_dir.empty() && runner.work_dir.empty() && !job.plan.container)
    job.loaded.warnings.push_back(
        "the current folder does not exist any more, so ranks run in the home folder; change to a "
        "folder that exists, or set runner.work_dir");
  job.plan.config_warnings = job.loaded.warnings;
  std::error_code error;
  if (!options.config.empty()) job.label.config = fs::absolute(options.config, error).string();
  job.label.name =
      options.name.empty() ? default_run_name(job.label.config, runner.program) : options.name;
  return job;
}

namespace {
Result<SiteOfRun> make_site(const PlannedSite& planned, RunFolder& run,
                            const config::JobConfig& job);
}

int run_job(const PlannedJob& planned, StartNotice* detached) {
  const config::JobConfig& job = planned.loaded.job;
  init_log(job.logger.log_level);
  const auto give_up = [&](const Error& error) {
    const int code = exit_code_for(error.code);
    if (detached)
      detached->failed(code, error.message);
    else
      Console(Console::detect()).error(error.message);
    return code;
  };
  auto binary = open_runner_binary();
  if (!binary) return give_up(binary.error());
  auto state = state_folder(job.logger.log_dir);
  if (!state) return give_up(state.error());
  auto folder = RunFolder::create(*state, job.logger.tensorboard);
  if (!folder) return give_up(folder.error());
  if (!job.logger.log_dir.empty()) RunIndex::remember(*state);
  const auto not_started = [&](const Error& error) {
    folder->discard();
    return give_up(error);
  };
  const auto lock = SupervisorLock::take(folder->path(), 1);
  if (!lock) return not_started(lock.error());
  for (const auto& [name, content] :
       {std::pair<std::string, std::string>{"config.toml", config::to_toml(job)},
        {"plan.json", plan_json_text(planned.plan)}})
    if (auto written = folder->write(name, content); !written) return not_started(written.error());
  if (auto written = write_label(folder->path(), planned.label); !written)
    return not_started(written.error());
  std::vector<SiteOfRun> sites;
  for (const PlannedSite& site : planned.sites) {
    auto made = make_site(site, *folder, job);
    if (!made) return not_started(made.error());
    sites.push_back(std::move(*made));
  }
  {
    Console before(Console::detect());  // on the terminal, also for a detached run
    for (const std::string& warning : warnings_of(planned.plan))
      before.message("warning: " + warning);
  }
  Console::Style style = Console::detect();
  if (detached) {
    if (auto left = detached->leave_terminal(folder->path()); !left)
      return not_started(left.error());
    style = Console::detect();
    style.ranks = false;  // their output is in their logs
  }
  Console console(style);
  for (const std::string& warning : planned.loaded.warnings)
    console.message(fmt::format("warning: {}", warning));
  const int code = supervise({job,
                              planned.plan,
                              planned.facts,
                              planned.hosts,
                              planned.spares,
                              *binary,
                              *folder,
                              *lock,
                              console,
                              detached,
                              {},
                              sites.empty() ? nullptr : &sites});
  if (!detached && planned.next_steps)
    if (const std::string next = planned.next_steps(code, folder->path()); !next.empty())
      console.message(next);
  return code;
}

void adopt_into(RunLoop::Parts& parts, const SuperviseParts::Adopted& adopted) {
  parts.attempt.adopts = !adopted.between_attempts;
  parts.attempt.cgroups = adopted.cgroups;
  parts.history = adopted.history;
  parts.between_attempts = adopted.between_attempts;
  parts.configured_ranks = adopted.configured_ranks;
  parts.places = adopted.places;
  parts.before = adopted.before;
  if (adopted.no_plan)
    parts.replan = [why = *adopted.no_plan](const auto&, const auto&) {
      return Result<LaunchPlan>(std::unexpected(why));
    };
}

namespace {

RunLoop::Parts loop_parts(const SuperviseParts& with, Console& console, RunFolder& folder,
                          Transport& transport, FileCalls& file_calls,
                          const asio::any_io_executor& executor) {
  RunLoop::Parts parts{{executor, transport, with.binary, console, folder},
                       file_calls,
                       replan_with(with.facts),
                       with.hosts,
                       with.spares};
  parts.known_hosts = hosts_that_are_known;
  parts.fitness = [executor, &transport, &binary = with.binary](
                      const config::JobConfig& job, const LaunchPlan& plan, config::HostSlots host,
                      std::shared_ptr<GiveUp> give_up) {
    constexpr std::chrono::seconds kLimit{20};
    return accept_spare(executor, transport, {job, plan, binary}, std::move(host), kLimit,
                        std::move(give_up));
  };
  parts.note_blames = [id = with.folder.id(),
                       recovery = with.job.recovery](std::vector<Blame> blames) {
    const auto store = NodeStore::open();
    if (!store) return Result<std::map<std::string, std::string>>();
    const double window = static_cast<double>(recovery.blame_window.count()) / 1000;
    return note_blames_of_run(*store, id, std::move(blames), recovery.cordon_runs, window);
  };
  parts.cordon = [id = with.folder.id()](
                     const std::vector<CordonOrder>& hosts,
                     const std::vector<std::string>& all) -> Result<CordonOutcome> {
    SORTIE_ASSIGN_OR_RETURN(const NodeStore store, NodeStore::open());
    return cordon_hosts_of_run(store, id, hosts, all);
  };
  parts.attempt.epoch = with.lock.epoch();
  return parts;
}

/// Creates a site with its folder below the run folder.
Result<SiteOfRun> make_site(const PlannedSite& planned, RunFolder& run,
                            const config::JobConfig& job) {
  SORTIE_ASSIGN_OR_RETURN(
      RunFolder folder,
      RunFolder::open_site(run.path(), planned.place.name,
                           run_id_of_site(run.id(), planned.place.index), job.logger.tensorboard));
  SORTIE_TRY(folder.write("plan.json", plan_json_text(planned.plan)));
  return SiteOfRun{planned, std::move(folder)};
}

/// Plans a site for `sortie sites add`. `lines`: host lines separated by newlines.
Result<SiteOfRun> plan_added_site(const SuperviseParts& with, const std::string& name,
                                  const std::string& lines, std::int64_t index,
                                  std::int64_t count) {
  PlannedSite site;
  site.place = {name, index, count};
  SORTIE_ASSIGN_OR_RETURN(
      site.hosts, hosts_of_added(name, lines, static_cast<int>(with.job.runner.default_slots)));
  SORTIE_ASSIGN_OR_RETURN(const NodeState state, cordoned_hosts());
  SORTIE_ASSIGN_OR_RETURN(SoundHosts sound, without_cordoned(site.hosts, {}, state, unix_time()));
  site.hosts = std::move(sound.hosts);
  SORTIE_ASSIGN_OR_RETURN(site.plan, make_site_plan(with.job, site.hosts, with.facts, site.place));
  SORTIE_ASSIGN_OR_RETURN(SiteOfRun made, make_site(site, with.folder, with.job));
  if (with.job.runner.on_launcher_loss != "kill" || with.job.recovery.max_restarts > 0)
    made.folder.obey(supervisor_file(with.folder.path(), with.lock.epoch() + 1));
  return made;
}

Result<std::unique_ptr<SupervisedRun>> run_of(const SuperviseParts& with, Transport& transport,
                                              FileCalls& file_calls,
                                              const asio::any_io_executor& executor) {
  // Called on the folder's thread, after the events of the start are on disk: `sortie status` may
  // be the next command of a script.
  const auto started = [detached = with.detached, id = with.folder.id()] {
    if (detached) detached->started(id);
  };
  if (!with.sites) {
    RunLoop::Parts parts =
        loop_parts(with, with.console, with.folder, transport, file_calls, executor);
    parts.attempt.on_started = [started, &folder = with.folder] { folder.when_written(started); };
    if (with.adopted) adopt_into(parts, *with.adopted);
    return std::make_unique<RunLoop>(std::move(parts), with.job, with.plan);
  }
  std::int64_t count = 0;
  for (SiteOfRun& site : *with.sites) {
    count = site.planned.place.count;
    if (with.job.runner.on_launcher_loss != "kill" || with.job.recovery.max_restarts > 0)
      site.folder.obey(supervisor_file(with.folder.path(), with.lock.epoch() + 1));
    site.folder.track(with.job);
  }
  SiteRuns::Parts parts{executor, with.console, with.folder, with.job, std::move(*with.sites)};
  parts.epoch = with.lock.epoch();
  parts.adopts = with.adopted.has_value();
  parts.on_started = started;
  parts.loop_parts = [&with, &transport, &file_calls, executor](Console& console,
                                                                RunFolder& folder) {
    return loop_parts(with, console, folder, transport, file_calls, executor);
  };
  LauncherFacts facts = with.facts;
  facts.ask_trainer = {};
  parts.replan = [facts](const SitePlace& place) -> RunLoop::Replan {
    return
        [facts, place](const config::JobConfig& job, const std::vector<config::HostSlots>& hosts) {
          return make_site_plan(job, hosts, facts, place);
        };
  };
  parts.plan_site = [&with, count](const std::string& name, const std::string& lines,
                                   std::int64_t index) {
    return plan_added_site(with, name, lines, index, count);
  };
  auto runs = std::make_unique<SiteRuns>(std::move(parts));
  SORTIE_TRY(runs->open());
  return runs;
}

}  // namespace

int supervise(const SuperviseParts& with) {
  const config::JobConfig& job = with.job;
  RunFolder& folder = with.folder;
  Console& console = with.console;
  StartNotice* const detached = with.detached;
  if (job.runner.on_launcher_loss != "kill" || job.recovery.max_restarts > 0)
    folder.obey(supervisor_file(folder.path(), with.lock.epoch() + 1));
  if (!with.sites) folder.track(job);
  std::signal(SIGPIPE, SIG_IGN);
  asio::io_context io(1);
  const auto transport = make_run_transport(io.get_executor(), job.runner, with.binary);
  FileCalls file_calls(io.get_executor());
  auto made = run_of(with, *transport, file_calls, io.get_executor());
  if (!made) {
    console.error(made.error().message);
    const int code = exit_code_for(made.error().code);
    if (detached) detached->failed(code, made.error().message);
    return code;
  }
  SupervisedRun& run = **made;
  RunControl control(run, console, folder, with.lock, io.get_executor(),
                     [&transport](const std::string& host, std::chrono::milliseconds time) {
                       transport->cut_link(host, time);
                     });
  asio::signal_set signals(io);
  add_terminal_signals(signals);
  spawn(io, watch_signals(signals, run, console));
  Verdict verdict;
  const auto all = [&]() -> asio::awaitable<void> { verdict = co_await run.run(); };
  run_to_end(io, all());
  signals.clear();  // from here on Ctrl-C has its default action
  folder.finish(verdict.exit_code);
  std::vector<const RunFolder*> folders = run.site_folders();
  folders.push_back(&folder);
  for (const RunFolder* const written : folders) wait_for_folder(*written, console);
  control.end(verdict);
  if (detached) detached->failed(verdict.exit_code, verdict.text);  // no-op if it has started
  print_verdict(console, verdict, folders);
  wait_for_nodes(file_calls, console);
  // What a script redirects to a file must not be incomplete without an error. A reader that has
  // gone, or a stdout that was closed from the start, wants nothing.
  (void)console.flush(std::chrono::seconds(1));
  const int error = detached ? 0 : console.out_error();
  if (error == 0 || error == EPIPE || error == EBADF) return verdict.exit_code;
  console.error(fmt::format("{}; `sortie logs {}` has all output of the ranks",
                            os_error(error, "sortie: write to stdout").message, folder.id()));
  return verdict.exit_code == kExitOk ? kExitData : verdict.exit_code;
}

}  // namespace sortie::launcher
