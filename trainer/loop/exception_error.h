// Turns an exception into the Error that a user reads. Exceptions are lack of memory or of threads,
// a collective or a device that failed, and bugs.
#pragma once

#include <exception>
#include <string>

#include "common/base/result.h"

namespace sortie::trainer {

/// What the user can do about the lack of something; the end of the message.
struct ExceptionAdvice {
  std::string memory;      // of the host
  std::string gpu_memory;  // and before it, what is known about the need:
  std::string gpu_need{};  // " (planned: 100 MiB in all)"
  std::string threads;
};

/// CommunicatorError becomes ErrorCode::lost; OutOfMemory, std::bad_alloc, and a thread that could
/// not be started, `unsupported`; others `internal`. `exception` must not be null.
Error error_of_exception(const std::exception_ptr& exception, const ExceptionAdvice& advice);

}  // namespace sortie::trainer
