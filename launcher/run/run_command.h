// `sortie run`: runs a checked job to its end, including all messages to the user.
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
  std::vector<config::HostSlots> hosts;   // hosts of `plan`
  std::vector<config::HostSlots> spares;  // recovery.spares
  LauncherFacts facts;                    // facts that the plan was made with
  RunLabel label;
  /// Plans of the single sites if the hosts have sites. `plan` then lists the hosts and ranks of
  /// all sites in sequence.
  std::vector<PlannedSite> sites;
  /// Returns hints for the user about what to do after the run, whose folder is `run`. May be an
  /// empty function.
  std::function<std::string(int exit_code, const std::filesystem::path& run)> next_steps;
};
Result<PlannedJob> plan_job(const JobOptions& options);

class Console;
class RunFolder;
struct SiteOfRun;
class StartNotice;
class SupervisorLock;

/// Collects the facts of this machine and this process.
LauncherFacts launcher_facts();

/// Path of a program of Sortie (such as "sortie-train") in the folder of this executable.
std::filesystem::path program_beside(const char* name);

/// Returns a function that asks the sortie-train in the folder of this executable.
AskTrainer trainer_beside();

/// Opens the runner that is copied to hosts: $SORTIE_RUNNER, or the one in the folder of this
/// executable.
Result<RunnerBinary> open_runner_binary();

/// Parameters of supervise(). All references must outlive the call.
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
  /// State of a run that this supervisor adopts.
  struct Adopted {
    std::map<std::string, std::string> cgroups;  // host -> cgroup of the job there
    std::vector<AttemptEnd> history;
    bool between_attempts = false;
    std::uint32_t configured_ranks = 0;
    std::vector<config::HostSlots> places = {};  // RunLoop::Parts::places
    std::optional<AttemptEnd> before;            // known so far about the attempt that continues
    std::optional<Error> no_plan;                // why no further attempt can be planned
  };
  std::optional<Adopted> adopted = {};
  /// Sites of a run over several sites, else nullptr; `hosts` and `spares` are then those of all
  /// sites. supervise() moves from the vector.
  std::vector<SiteOfRun>* sites = nullptr;
};
/// Supervises a run whose folder and lock exist, from connecting to hosts to the verdict. Returns
/// the exit code.
int supervise(const SuperviseParts& parts);

/// Copies the state of an adopted run into the parameters of its loop, or of the loop of a site.
void adopt_into(RunLoop::Parts& parts, const SuperviseParts::Adopted& adopted);

/// Runs the job and returns the exit code. With `detached` (control/detach.h) it detaches from the
/// terminal and reports there whether the start succeeded.
int run_job(const PlannedJob& job, StartNotice* detached = nullptr);

}  // namespace sortie::launcher
