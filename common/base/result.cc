#include "common/base/result.h"

#include <cstring>

namespace sortie {

std::string_view error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage:
      return "usage";
    case ErrorCode::config:
      return "config";
    case ErrorCode::not_found:
      return "not_found";
    case ErrorCode::io:
      return "io";
    case ErrorCode::resolve:
      return "resolve";
    case ErrorCode::connect:
      return "connect";
    case ErrorCode::handshake:
      return "handshake";
    case ErrorCode::host_key:
      return "host_key";
    case ErrorCode::auth:
      return "auth";
    case ErrorCode::channel:
      return "channel";
    case ErrorCode::runner:
      return "runner";
    case ErrorCode::protocol:
      return "protocol";
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::lost:
      return "lost";
    case ErrorCode::spawn:
      return "spawn";
    case ErrorCode::rank_failed:
      return "rank_failed";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::data:
      return "data";
    case ErrorCode::checkpoint:
      return "checkpoint";
    case ErrorCode::diverged:
      return "diverged";
    case ErrorCode::interrupted:
      return "interrupted";
    case ErrorCode::internal:
      return "internal";
  }
  return "internal";
}

Error os_error(int errno_value, std::string_view context, ErrorCode code) {
  // GNU strerror_r never fails and is the thread-safe form.
  char buffer[128];
  const char* text = strerror_r(errno_value, buffer, sizeof buffer);
  return Error{code, std::string(context) + ": " + text};
}

Error with_context(Error error, std::string_view where) {
  error.message.insert(0, std::string(where) + ": ");
  return error;
}

}  // namespace sortie
