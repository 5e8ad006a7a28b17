// `sortie run`: from a checked job to its end, with everything a person sees.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/load.h"
#include "launcher/control/run_record.h"
#include "launcher/host/bootstrap.h"
#include "launcher/plan/plan.h"
#include "launcher/recovery/decide.h"
#include "launcher/run/job_options.h"
#include "launcher/run/run_loop.h"
#include "launcher/sites/site_plan.h"

namespace sortie::launcher {

/// A job with absolute paths, and its plan.
struct PlannedJob {
  config::LoadedJob loaded;
  LaunchPlan plan;
  std::vector<config::HostSlots> hosts;   // of the plan
  std::vector<config::HostSlots> spares;  // recovery.spares
  LauncherFacts facts;                    // that the plan was made with
  RunLabel label;
  /// Where the hosts are at sites: what is started on each. `plan` is then that of all, in a row.
  std::vector<PlannedSite> sites;
  /// What to try after it, for a person: from the exit code and the run's id; may be empty.
  std::function<std::string(int exit_code, const std::string& run)> next_steps;
};
Result<PlannedJob> plan_job(const JobOptions& options);

class Console;
class RunFolder;
struct SiteOfRun;
class StartNotice;
class SupervisorLock;

/// Of this machine and this process.
LauncherFacts launcher_facts();

/// A program of Sortie's: beside this one, "sortie-train"; or this one itself.
std::filesystem::path program_beside(const char* name);

/// Asks the sortie-train beside this program.
AskTrainer trainer_beside();

/// The runner that goes to hosts: the one beside this program, or $SORTIE_RUNNER.
Result<RunnerBinary> open_runner_binary();

/// Runs the supervisor of a run whose folder and lock are there, from connecting to the verdict;
/// returns the exit code.
struct SuperviseParts {
  const config::JobConfig& job;
  const LaunchPlan& plan;
  const LauncherFacts& facts;
  const std::vector<config::HostSlots>& hosts;
  const std::vector<config::HostSlots>& spares;
  const RunnerBinary& binary;
  RunFolder& folder;
  const SupervisorLock& lock;
  Console& console;
  StartNotice* detached = nullptr;
  /// Of a run that is adopted.
  struct Adopted {
    std::map<std::string, std::string> cgroups;  // on its hosts
    std::vector<AttemptEnd> history;
    bool between_attempts = false;
    std::uint32_t configured_ranks = 0;
    std::vector<config::HostSlots> places = {};  // RunLoop::Parts::places
    std::optional<AttemptEnd> before;            // of the attempt that goes on
    std::optional<Error> no_plan;                // why no further attempt can be planned
  };
  std::optional<Adopted> adopted = {};
  /// Of a run over several sites; `hosts` and `spares` are then those of all. Taken from here.
  std::vector<SiteOfRun>* sites = nullptr;
};
int supervise(const SuperviseParts& parts);

/// What the loop of an adopted run, or of one of its sites, has to know.
void adopt_into(RunLoop::Parts& parts, const SuperviseParts::Adopted& adopted);

/// Runs it and returns the exit code. With `detached` (control/detach.h) it lets go of the
/// terminal, and says there how the start went.
int run_job(const PlannedJob& job, StartNotice* detached = nullptr);

}  // namespace sortie::launcher
