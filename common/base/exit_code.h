// The table that maps errors to the exit codes of Sortie's programs, with the meaning of each code
// and advice. `sortie explain` and docs/exit_codes.md print it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace sortie {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;         // any failure without a more specific code
inline constexpr int kExitUsage = 2;          // command line or config
inline constexpr int kExitPreflight = 3;      // a host lacks something that the job needs
inline constexpr int kExitUnreachable = 4;    // a host could not be reached
inline constexpr int kExitLost = 5;           // a host, its runner or the supervisor went away
inline constexpr int kExitHang = 6;           // ranks stopped making progress
inline constexpr int kExitAdopted = 7;        // another supervisor has taken the run over
inline constexpr int kExitCheckpoint = 8;     // no usable checkpoint
inline constexpr int kExitData = 9;           // data or storage
inline constexpr int kExitNoProgress = 10;    // attempts without a newer checkpoint: do not requeue
inline constexpr int kExitPreempted = 75;     // it can resume: SIGTERM and saved, or lost sites
inline constexpr int kExitTimedOut = 124;     // sortie exec --timeout; the same code as timeout(1)
inline constexpr int kExitNotRunnable = 126;  // a program could not be run; as in shells
inline constexpr int kExitNotFound = 127;     // a program was not found; as in shells
inline constexpr int kExitInterrupted = 130;  // Ctrl-C

/// Meaning of the exit codes of `sortie check`: they are its verdict, not those of the table.
inline constexpr std::string_view kCheckExitCodes =
    "0 all checks passed, 1 warnings, 2 failures (or a wrong command line or config), 3 a slow "
    "link";

/// One exit code. A code that is not in the table is a program's own; see explain_exit_code().
struct ExitCode {
  int code;
  std::string_view name;     // "unreachable"
  std::string_view meaning;  // one sentence, no period
  std::string_view advice;   // what to do, in the same form
};
std::span<const ExitCode> exit_codes();

/// One failure class. Messages contain its name as "host_key: ...", events.jsonl as "stage" or
/// "code".
struct ErrorClass {
  ErrorCode code;
  int exit_code;
  std::string_view meaning, advice;
};
/// All failure classes, in the order of ErrorCode.
std::span<const ErrorClass> error_classes();

/// Exit code for an error. Not for a failed rank: such a run exits with the rank's own code (128 +
/// signal number for a signal).
int exit_code_for(ErrorCode code);

/// Meaning of any code from 0 to 255: one of the table, 128 + a signal number, or a program's own.
/// No string is empty.
struct ExplainedCode {
  std::string name, meaning, advice;
};
ExplainedCode explain_exit_code(int code);

/// docs/exit_codes.md.
std::string exit_codes_markdown();

}  // namespace sortie
