// Keys of [recovery] and [watchdog]: how a run recovers from failures, and how it detects hangs.
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
     "Only restarts within this time count for max_restarts"},
    {"recovery.restart_on", recovery<&Recovery::restart_on>, kFailureClass, "",
     "Failures after which all ranks start again, where max_restarts is above 0. app = a rank's exit code; software = a signal; "
     "hardware = a host or device; hang = no progress; oom = out of memory; preempted = SIGTERM, SIGHUP or exit code 75"},
    {"recovery.counted", recovery<&Recovery::counted>, kFailureClass, "",
     "Failure classes whose restarts count for max_restarts; the others are limited only by no_progress_limit"},
    {"recovery.restart_exit_codes", recovery<&Recovery::restart_exit_codes>, kExitCodes, "",
     "Exit codes of a rank after which the run restarts, whatever restart_on says"},
    {"recovery.stop_exit_codes", recovery<&Recovery::stop_exit_codes>, kExitCodes, "",
     "Exit codes of a rank after which the run never restarts; sortie-train's 2 is an error of the config"},
    {"recovery.backoff", recovery<&Recovery::backoff>, DurationRange{"0s", "1h"}, "",
     "Pause before a restart; doubled for each restart in a row, with a random jitter of 25 %", kUser},
    {"recovery.backoff_max", recovery<&Recovery::backoff_max>, DurationRange{"0s", "24h"}, "", "Longest pause before a restart", kUser},
    {"recovery.healthy_after", recovery<&Recovery::healthy_after>, DurationRange{"1s", "24h"}, "",
     "An attempt that lasted this long resets the pause to backoff"},
    {"recovery.no_progress_limit", recovery<&Recovery::no_progress_limit>, IntegerRange{0, 1000}, "attempts",
     "The run stops after this many attempts in a row without a newer committed step; 0 = no limit"},
    {"recovery.spares", recovery<&Recovery::spares>, Form{"NAME [slots=N | slots=A,B,...] [site=NAME]", check_host_item}, "",
     "Spare hosts that replace hosts blamed for a failure, like \"gpu[17-18]\"; each needs at least as many slots as the host that it replaces"},
    {"recovery.min_hosts", recovery<&Recovery::min_hosts>, IntegerRange{0, 65536}, "hosts",
     "If no spare is left, the run continues without the blamed host on at least this many hosts, with the same global batch size; 0 = all hosts are needed"},
    {"recovery.cordon", recovery<&Recovery::cordon>, {}, "",
     "Cordon hosts that are blamed for two failures, or for one with a fault that needs manual repair: `sortie nodes` lists them, and no run of this user starts there", kUser},
    {"recovery.progress_file", recovery<&Recovery::progress_file>, kPathForm, "",
     "For programs that report no events: a file on the first host whose first number is the last committed step", kPath},
    {"recovery.supervisor_restarts", recovery<&Recovery::supervisor_restarts>, IntegerRange{0, 1000}, "",
     "How often in a row a detached run replaces a supervisor that died (SIGKILL, a crash, lack of memory) within 10 s; "
     "one that lived longer resets the count. Needs on_launcher_loss = \"hold T\" or max_restarts above 0. 0 = never; use `sortie attach --adopt`", kUser},
    {"recovery.grow_at", recovery<&Recovery::grow_at>, Choices{{"never", "restart", "checkpoint"}}, "",
     "When a run that continued on fewer hosts (min_hosts) takes healthy hosts back: restart = at its next restart; "
     "checkpoint = by a planned restart after the next commit, which does not count for max_restarts"},
    {"recovery.fit_interval", recovery<&Recovery::fit_interval>, DurationRange{"1s", "24h"}, "",
     "Interval in which a run on fewer hosts checks the hosts and spares that it lost, one host at a time", kUser},
    {"recovery.commit_wait", recovery<&Recovery::commit_wait>, DurationRange{"0s", "24h"}, "",
     "Longest time that a planned restart (grow_at, slow_swaps) waits for the next commit; then ranks of sortie-train are asked to save"},
    {"recovery.slow_swaps", recovery<&Recovery::slow_swaps>, IntegerRange{0, 1000}, "hosts",
     "Largest number of slow hosts (watchdog.straggler_ratio) that are replaced by a spare at the next commit; 0 = slow hosts are only reported"},
    {"recovery.cordon_runs", recovery<&Recovery::cordon_runs>, IntegerRange{0, 1000}, "runs",
     "A host that is blamed by this many runs of this user within blame_window is cordoned, even if each run blames it only once; applies to runs with restarts; 0 = runs are counted separately", kUser},
    {"recovery.blame_window", recovery<&Recovery::blame_window>, DurationRange{"1h", "2160h"}, "",
     "How long the blames of a host are remembered across runs", kUser},

    {"watchdog.hangs", watchdog<&Watchdog::hangs>, {}, "", "Detect ranks without progress, kill all ranks and treat it as a failure of class hang; needs a program that reports progress"},
    {"watchdog.hang_minimum", watchdog<&Watchdog::hang_minimum>, DurationRange{"1s", "24h"}, "",
     "Minimum time limit of a section of a step; the limit is the larger of this and 5 times the 99th percentile of its own times. Validation, saving and sections without history have 10 times this"},
    {"watchdog.hang_timeout", watchdog<&Watchdog::hang_timeout>, DurationRange{"0s", "24h"}, "",
     "Time limit of every section except the start (start_timeout), instead of learned limits; 0s = learned"},
    {"watchdog.start_timeout", watchdog<&Watchdog::start_timeout>, DurationRange{"0s", "24h"}, "",
     "Timeout from the start of the ranks to their first step; 0s = no limit"},
    {"watchdog.exempt_steps", watchdog<&Watchdog::exempt_steps>, IntegerRange{0, 1000}, "steps",
     "Number of first steps of an attempt that are excluded from learned limits"},
    {"watchdog.dump_timeout", watchdog<&Watchdog::dump_timeout>, DurationRange{"0s", "10m"}, "",
     "Timeout for collecting the stacks of all ranks before hung ranks are killed; 0s = no stacks", kUser},
    {"watchdog.straggler_ratio", watchdog<&Watchdog::straggler_ratio>, NumberRange{0, 100, false, false, true}, "",
     "A host whose own work takes this many times the median of all hosts is reported as slow; 0 = off", kUser},
    {"watchdog.straggler_windows", watchdog<&Watchdog::straggler_windows>, IntegerRange{1, 10'000}, "windows",
     "Number of consecutive ten-second windows in which a host must be that slow", kUser},
    {"watchdog.health", watchdog<&Watchdog::health>, {}, "",
     "Watch GPUs, kernel log, network links, memory, disks and clock of the hosts during a run", kUser},
};
// clang-format on

}  // namespace

std::span<const Field> recovery_fields() {
  return kRecoveryFields;
}

}  // namespace sortie::config
