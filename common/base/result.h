// Result<T>: the value or the Error of an operation that can fail because of a user, a peer or the
// OS. Bugs in Sortie are not Errors: see check.h.
#pragma once

#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace sortie {

/// Closed set of failure classes; base/exit_code.h maps each to the process exit code.
enum class ErrorCode {
  usage,        // bad command line
  config,       // bad config file, key, value or combination
  not_found,    // a file or name that should exist does not
  io,           // the OS refused a read, write, rename, sync ...
  resolve,      // host name does not resolve
  connect,      // TCP connection refused, unreachable or timed out
  handshake,    // the peer speaks no SSH, or the SSH handshake failed
  host_key,     // host key unknown or changed
  auth,         // every authentication method was refused
  channel,      // the SSH channel or remote command could not be started
  runner,       // the runner could not be installed or started, or it violated the protocol
  protocol,     // a peer violated the protocol
  timeout,      // a deadline passed
  lost,         // the connection to a peer that had answered was lost
  spawn,        // a rank could not be started
  rank_failed,  // a rank exited non-zero or by signal
  unsupported,  // this build or this machine does not support the operation
  data,         // token files, tokenizer or other training data are wrong
  checkpoint,   // no usable checkpoint, or a broken one
  diverged,     // training can not continue (non-finite for too long)
  interrupted,  // Ctrl-C or TERM
  internal,     // an exception of a third-party library that has no better class
};

/// Stable lower-case name, as it appears in events.jsonl ("host_key", "rank_failed" ...).
std::string_view error_code_name(ErrorCode code);

/// Message form: "<where>: what failed: why; what to do" - no trailing period, never a bare errno.
struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::internal;
  std::string message;
};

template <class T = void>
using Result = std::expected<T, Error>;

inline std::unexpected<Error> fail(ErrorCode code, std::string message) {
  return std::unexpected(Error{code, std::move(message)});
}

/// Error of a failed system call: "<context>: <strerror(errno_value)>".
Error os_error(int errno_value, std::string_view context, ErrorCode code = ErrorCode::io);

/// Prepends "<where>: ", keeping the code.
Error with_context(Error error, std::string_view where);

}  // namespace sortie

#define SORTIE_CONCAT_INNER(a, b) a##b
#define SORTIE_CONCAT(a, b) SORTIE_CONCAT_INNER(a, b)

/// Returns the Error of `expr` from the enclosing function. Discards a value.
#define SORTIE_TRY(expr)                                            \
  do {                                                              \
    if (auto sortie_try_result = (expr); !sortie_try_result)        \
      return std::unexpected(std::move(sortie_try_result).error()); \
  } while (false)

/// Declares `lhs` from the value of `expr`, or returns its Error. Not for coroutines (co_return).
#define SORTIE_ASSIGN_OR_RETURN(lhs, expr)                                              \
  auto SORTIE_CONCAT(sortie_result_, __LINE__) = (expr);                                \
  if (!SORTIE_CONCAT(sortie_result_, __LINE__))                                         \
    return std::unexpected(std::move(SORTIE_CONCAT(sortie_result_, __LINE__)).error()); \
  lhs = std::move(SORTIE_CONCAT(sortie_result_, __LINE__)).value()
