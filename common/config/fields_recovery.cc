// Keys of [recovery] and [watchdog]: what a run does by itself, and how it finds what stands still.
#include "common/config/field_forms.h"
#include "common/config/fields.h"
#include "common/config/forms.h"

namespace sortie::config {
namespace {

template <auto M>
constexpr auto recovery = member<&JobConfig::recovery, M>;
template <auto M>
constexpr auto watchdog = member<&JobConfig::watchdog, M>;

using Recovery = RecoveryConfig;
using Watchdog = WatchdogConfig;

const Form kFailureClass{"app | software | hardware | hang | oom | preempted", check_failure_class};
const Form kExitCodes{"an exit code or a range, like \"75\" or \"64-69\"", check_exit_codes};

// clang-format off
const Field kRecoveryFields[] = {
    {"recovery.max_restarts", recovery<&Recovery::max_restarts>, IntegerRange{0, 1'000'000}, "",
     "Restarts of all ranks within restart_window after failures of the classes in counted; 0 = a failure ends the run", kCommon},
    {"recovery.restart_window", recovery<&Recovery::restart_window>, DurationRange{"1s", "8760h"}, "",
     "Restarts that are longer ago are not counted"},
    {"recovery.restart_on", recovery<&Recovery::restart_on>, kFailureClass, "",
     "Failures after which all ranks start again, where max_restarts is above 0. app = a rank's exit code; software = a signal; "
     "hardware = a host or device; hang = no progress; oom = out of memory; preempted = the host is taken away"},
    {"recovery.counted", recovery<&Recovery::counted>, kFailureClass, "",
     "Failures whose restarts count for max_restarts; the others are bounded by no_progress_limit alone"},
    {"recovery.restart_exit_codes", recovery<&Recovery::restart_exit_codes>, kExitCodes, "",
     "Exit codes of a rank after which the run restarts, whatever restart_on says"},
    {"recovery.stop_exit_codes", recovery<&Recovery::stop_exit_codes>, kExitCodes, "",
     "Exit codes of a rank after which the run never restarts; sortie-train's 2 is an error of the config"},
    {"recovery.backoff", recovery<&Recovery::backoff>, DurationRange{"0s", "1h"}, "",
     "Pause before a restart; doubled for each restart in a row, and a quarter more or less by chance", kUser},
    {"recovery.backoff_max", recovery<&Recovery::backoff_max>, DurationRange{"0s", "24h"}, "", "Longest pause before a restart", kUser},
    {"recovery.healthy_after", recovery<&Recovery::healthy_after>, DurationRange{"1s", "24h"}, "",
     "An attempt that lasted so long ends a row of restarts: the pause is backoff again"},
    {"recovery.no_progress_limit", recovery<&Recovery::no_progress_limit>, IntegerRange{0, 1000}, "attempts",
     "Attempts in a row that end without a newer committed step than the one before, after which the run stops; 0 = no limit"},
    {"recovery.spares", recovery<&Recovery::spares>, Form{"NAME [slots=N | slots=A,B,...] [site=NAME]", check_host_item}, "",
     "Hosts that take the place of hosts that are blamed for a failure, like \"gpu[17-18]\"; each with at least the slots of the host that it replaces"},
    {"recovery.min_hosts", recovery<&Recovery::min_hosts>, IntegerRange{0, 65536}, "hosts",
     "Where no spare is left, a run goes on without the blamed host on at least so many hosts, with the global batch size as configured; 0 = on all of them"},
    {"recovery.cordon", recovery<&Recovery::cordon>, {}, "",
     "Hosts that are blamed for two failures, or for one with a fault that a person has to mend, are cordoned: `sortie nodes` lists them, and no run of this user starts there", kUser},
    {"recovery.progress_file", recovery<&Recovery::progress_file>, kPathForm, "",
     "For programs that report no events: a file on the first host whose first number is the last committed step", kPath},
    {"recovery.supervisor_restarts", recovery<&Recovery::supervisor_restarts>, IntegerRange{0, 1000}, "",
     "Supervisors in a row that a detached run starts by itself in the place of one that died (SIGKILL, a crash, lack of memory) within 10 s; "
     "one that lived longer begins a new row. Needs on_launcher_loss = \"hold T\" or max_restarts above 0. 0 = `sortie attach --adopt` starts them", kUser},
    {"recovery.grow_at", recovery<&Recovery::grow_at>, Choices{{"never", "restart", "checkpoint"}}, "",
     "When a run that went on with fewer hosts (min_hosts) takes hosts in again that are fit: restart = when it restarts anyhow; "
     "checkpoint = by a restart after the next commit, which no budget counts"},
    {"recovery.fit_interval", recovery<&Recovery::fit_interval>, DurationRange{"1s", "24h"}, "",
     "Time between two checks of hosts and spares that a run with fewer hosts had to leave: one host at a time", kUser},
    {"recovery.commit_wait", recovery<&Recovery::commit_wait>, DurationRange{"0s", "24h"}, "",
     "Longest time that a planned restart (grow_at, slow_swaps) waits for the next commit; then ranks of sortie-train are asked to save"},
    {"recovery.slow_swaps", recovery<&Recovery::slow_swaps>, IntegerRange{0, 1000}, "hosts",
     "Hosts that are named as slow (watchdog.straggler_ratio) and leave the run for a spare at the next commit, at most so many; 0 = they are only named"},
    {"recovery.cordon_runs", recovery<&Recovery::cordon_runs>, IntegerRange{0, 1000}, "runs",
     "A host that failures of so many runs of this user within blame_window speak against is cordoned by a run that may restart, also where each run blames it once; 0 = each run counts alone", kUser},
    {"recovery.blame_window", recovery<&Recovery::blame_window>, DurationRange{"1h", "2160h"}, "",
     "For how long blames of a host are remembered over runs", kUser},

    {"watchdog.hangs", watchdog<&Watchdog::hangs>, {}, "", "Find ranks whose progress has stopped, end them all and treat it as a failure of class hang; needs a program that reports progress"},
    {"watchdog.hang_minimum", watchdog<&Watchdog::hang_minimum>, DurationRange{"1s", "24h"}, "",
     "Least time that a section of a step may take; the limit is the larger of this and 5 times the 99th percentile of its own times. Validation, saving and what was not timed yet have 10 times this"},
    {"watchdog.hang_timeout", watchdog<&Watchdog::hang_timeout>, DurationRange{"0s", "24h"}, "",
     "Longest time of any section, instead of learned limits; 0s = learned"},
    {"watchdog.start_timeout", watchdog<&Watchdog::start_timeout>, DurationRange{"0s", "24h"}, "",
     "Longest time from the start of the ranks to their first step; 0s = no limit"},
    {"watchdog.exempt_steps", watchdog<&Watchdog::exempt_steps>, IntegerRange{0, 1000}, "steps",
     "First steps of an attempt whose times are not learned from"},
    {"watchdog.dump_timeout", watchdog<&Watchdog::dump_timeout>, DurationRange{"0s", "10m"}, "",
     "Time for the stacks of all ranks to come in before hung ranks are ended; 0s = no stacks", kUser},
    {"watchdog.straggler_ratio", watchdog<&Watchdog::straggler_ratio>, NumberRange{0, 100}, "",
     "A host whose own work takes this many times the median of all hosts is reported as slow; 0 = off", kUser},
    {"watchdog.straggler_windows", watchdog<&Watchdog::straggler_windows>, IntegerRange{1, 10'000}, "windows",
     "Windows of ten seconds in a row for which a host has to be that slow", kUser},
    {"watchdog.health", watchdog<&Watchdog::health>, {}, "",
     "Watch GPUs, kernel log, network links, memory, disks and clock of the hosts while a run goes on", kUser},
};
// clang-format on

}  // namespace

std::span<const Field> recovery_fields() {
  return kRecoveryFields;
}

}  // namespace sortie::config
