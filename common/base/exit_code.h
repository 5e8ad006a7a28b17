// The one table from what went wrong to the exit code of a Sortie program. README.md prints it.
#pragma once

#include "common/base/result.h"

namespace sortie {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // anything without a class of its own
inline constexpr int kExitUsage = 2;   // command line or config
inline constexpr int kExitPreflight =
    3;  // a host lacks something that the job needs (spawn, unsupported)
inline constexpr int kExitUnreachable =
    4;                               // resolve, connect, handshake, host key, auth, channel, runner
inline constexpr int kExitLost = 5;  // a host or its runner went away mid-run
inline constexpr int kExitCheckpoint = 8;     // no usable checkpoint
inline constexpr int kExitData = 9;           // data or storage
inline constexpr int kExitTimedOut = 124;     // sortie exec --timeout, as timeout(1) has it
inline constexpr int kExitInterrupted = 130;  // Ctrl-C

/// Exit code for an error. A failed rank is not here: the run exits with the rank's own code
/// (128 + signal number for a signal).
constexpr int exit_code_for(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage:
    case ErrorCode::config:
      return kExitUsage;
    case ErrorCode::spawn:
    case ErrorCode::unsupported:
      return kExitPreflight;
    case ErrorCode::resolve:
    case ErrorCode::connect:
    case ErrorCode::handshake:
    case ErrorCode::host_key:
    case ErrorCode::auth:
    case ErrorCode::channel:
    case ErrorCode::runner:
      return kExitUnreachable;
    case ErrorCode::lost:
      return kExitLost;
    case ErrorCode::checkpoint:
      return kExitCheckpoint;
    case ErrorCode::data:
    case ErrorCode::io:
    case ErrorCode::not_found:
      return kExitData;
    case ErrorCode::interrupted:
      return kExitInterrupted;
    case ErrorCode::protocol:
    case ErrorCode::timeout:
    case ErrorCode::rank_failed:
    case ErrorCode::diverged:
    case ErrorCode::internal:
      return kExitFailed;
  }
  return kExitFailed;
}

}  // namespace sortie
