// Maps a first cause to its class and to the host that it blames.
#include <array>
#include <csignal>

#include "launcher/recovery/decide.h"

namespace sortie::launcher {
namespace {

using What = Cause::What;

/// EX_TEMPFAIL of sysexits.h: the program asks for a restart.
constexpr int kTemporaryFailure = 75;

FailureClass of_signal(const Cause& cause) {
  // A rank whose child process was killed for lack of memory may abort instead of exiting. SIGSEGV
  // or SIGTERM do not follow from such a kill.
  if (cause.oom == 1 && cause.code == SIGABRT) return FailureClass::oom;
  // Orders of Sortie to end are never a cause, so something else on the host sent this signal.
  return cause.code == SIGTERM || cause.code == SIGHUP ? FailureClass::preempted
                                                       : FailureClass::software;
}

FailureClass of_exit(const Cause& cause) {
  if (cause.oom == 1) return FailureClass::oom;
  return cause.code == kTemporaryFailure ? FailureClass::preempted : FailureClass::app;
}

// clang-format off
constexpr std::array<FailureClassText, 9> kTexts = {{
    {FailureClass::app, "A rank ended with an exit code of its own, or called MPI_Abort",
     "Restarted and counted; exit codes in recovery.stop_exit_codes end the run. Read the rank's last lines"},
    {FailureClass::software, "A rank died of a signal, a runner gave up, or something did not end in time",
     "Restarted and counted. A host on which ranks were killed twice is replaced and cordoned"},
    {FailureClass::hardware, "A host was lost, or reported a fault that explains the failure",
     "Restarted, not counted; a host that can not be used is replaced by a spare at once. See recovery.spares and `sortie nodes ls`"},
    {FailureClass::hang, "Ranks made no progress for longer than [watchdog] allows",
     "Restarted and counted. The stacks of all ranks are in the run folder, attempts/N"},
    {FailureClass::oom, "A rank, or a process of it, was killed for lack of memory",
     "Not restarted, because it would happen again: lower topology.micro_batch_size, or add \"oom\" to recovery.restart_on"},
    {FailureClass::preempted, "The ranks were preempted: they received SIGTERM or SIGHUP, or exited with code 75",
     "Restarted, not counted; a host that went away is replaced by a spare"},
    {FailureClass::user, "Ctrl-C or `sortie stop`", "Never restarted"},
    {FailureClass::setup, "No rank had run yet: hosts that were not reached or lack something, or the config",
     "Not restarted. Where ranks had run before it is a failure of that host (hardware)"},
    {FailureClass::planned, "No failure: the run restarts after a commit, with hosts that are healthy again or without a slow host",
     "Restarted at once, not counted. See recovery.grow_at and recovery.slow_swaps"},
}};
// clang-format on

constexpr bool texts_are_in_order() {
  for (std::size_t i = 0; i < kTexts.size(); ++i)
    if (static_cast<std::size_t>(kTexts[i].failure) != i) return false;
  return kTexts.size() == kFailureClassNames.size();
}
static_assert(texts_are_in_order());

}  // namespace

std::span<const FailureClassText> failure_class_texts() {
  return kTexts;
}

FailureClass classify(const Cause& cause) {
  switch (cause.what) {
    case What::exit:
      return of_exit(cause);
    case What::signal:
      return of_signal(cause);
    case What::oom:
      return FailureClass::oom;
    case What::mpi_abort:
    case What::no_finalize:
      return FailureClass::app;
    case What::hang:
      return FailureClass::hang;
    case What::lost:
      return FailureClass::hardware;
    case What::timeout:
    case What::runner:
      return FailureClass::software;
    case What::spawn:
    case What::unreachable:
      return FailureClass::setup;
    case What::interrupted:
      return FailureClass::user;
    case What::planned:
      return FailureClass::planned;
  }
  return FailureClass::software;
}

std::string blamed_host(const Cause& cause) {
  switch (cause.what) {
    case What::signal:
      // SIGBUS is also what memory with an uncorrectable error raises.
      return cause.code == SIGKILL || cause.code == SIGBUS ? cause.host : "";
    case What::hang:
    case What::lost:
    case What::runner:
    case What::spawn:
    case What::unreachable:
      return cause.host;
    case What::exit:
    case What::oom:
    case What::mpi_abort:
    case What::no_finalize:
    case What::timeout:
    case What::interrupted:
    case What::planned:
      return "";
  }
  return "";
}

AttemptEnd end_of(std::uint32_t attempt, const Cause& cause) {
  AttemptEnd end;
  end.attempt = attempt;
  end.exit_code = cause.exit_code;
  end.failure = classify(cause);
  const std::string text = cause_text(cause);
  end.cause = text.substr(0, text.find('\n'));
  end.rank = cause.rank;
  if (cause.rank && (cause.what == What::exit || cause.what == What::signal ||
                     cause.what == What::oom || cause.what == What::mpi_abort))
    end.rank_code = cause.exit_code;
  end.blamed_host = blamed_host(cause);
  return end;
}

}  // namespace sortie::launcher
