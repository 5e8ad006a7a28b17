#include "trainer/loop/exception_error.h"

#include <fmt/core.h>

#include <new>
#include <system_error>

#include "trainer/parallel/communicator.h"
#include "trainer/tensor/allocator.h"
#include "trainer/tensor/device_memory.h"
#include "trainer/tensor/device_module.h"

namespace sortie::trainer {
namespace {

std::string unexpected(const std::exception& error) {
  return fmt::format("unexpected exception: {}; please report it with this message", error.what());
}

}  // namespace

Error error_of_exception(const std::exception_ptr& exception, const ExceptionAdvice& advice) {
  try {
    std::rethrow_exception(exception);
  } catch (const CommunicatorError& error) {
    return {ErrorCode::lost, fmt::format("communication between ranks broke: {}", error.what())};
  } catch (const OutOfMemory& error) {
    const bool gpu = memory_is_apart(error.device());
    return {ErrorCode::unsupported,
            fmt::format("out of memory: {}{}; {}", error.what(), gpu ? advice.gpu_need : "",
                        gpu ? advice.gpu_memory : advice.memory)};
  } catch (const DeviceError& error) {
    return {
        ErrorCode::internal,
        fmt::format("{}; look for what the driver says of it: `dmesg`, nvidia-smi", error.what())};
  } catch (const std::bad_alloc& error) {
    return {ErrorCode::unsupported,
            fmt::format("out of memory: {}; {}", error.what(), advice.memory)};
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again)
      return {ErrorCode::internal, unexpected(error)};
    return {ErrorCode::unsupported,
            fmt::format("a thread could not be started: {}; the host has no memory for it, or a "
                        "limit is reached (ulimit -u, ulimit -v, pids.max of the cgroup): raise "
                        "it, or {}",
                        error.code().message(), advice.threads)};
  } catch (const std::exception& error) {
    return {ErrorCode::internal, unexpected(error)};
  } catch (...) {
    return {ErrorCode::internal, "unexpected exception of an unknown type; please report it"};
  }
}

}  // namespace sortie::trainer
