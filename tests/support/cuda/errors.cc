// Errors of CUDA's runtime on emulated GPUs: their names, their texts, and the last one.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/check.h"
#include "tests/support/cuda/capture.h"
#include "tests/support/cuda/surroundings.h"

namespace emulated_cuda {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
const ErrorText& text_of(cudaError_t error) {
#define SORTIE_ERROR(name, text) \
  ErrorText {                    \
    name, #name, text            \
  }
  static constexpr std::array kTexts{
      SORTIE_ERROR(cudaSuccess, "no error"),
      SORTIE_ERROR(cudaErrorInvalidValue, "invalid argument"),
      SORTIE_ERROR(cudaErrorMemoryAllocation, "out of memory"),
      SORTIE_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
      SORTIE_ERROR(cudaErrorInsufficientDriver,
                   "CUDA driver version is insufficient for CUDA runtime version"),
      SORTIE_ERROR(cudaErrorDevicesUnavailable,
                   "CUDA-capable device(s) is/are busy or unavailable"),
      SORTIE_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
      SORTIE_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
      SORTIE_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
      SORTIE_ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
      SORTIE_ERROR(cudaErrorNotReady, "device not ready"),
      SORTIE_ERROR(cudaErrorHostMemoryAlreadyRegistered,
                   "part or all of the requested memory range is already mapped"),
      SORTIE_ERROR(cudaErrorHostMemoryNotRegistered,
                   "pointer does not correspond to a registered memory region"),
      SORTIE_ERROR(cudaErrorStreamCaptureUnsupported,
                   "operation not permitted when stream is capturing"),
      SORTIE_ERROR(cudaErrorStreamCaptureInvalidated,
                   "operation failed due to a previous error during capture"),
      SORTIE_ERROR(cudaErrorStreamCaptureMerge,
                   "operation would result in a merge of separate capture sequences"),
      SORTIE_ERROR(cudaErrorStreamCaptureUnmatched,
                   "capture was not ended in the same stream as "
                   "it began"),
      SORTIE_ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
      SORTIE_ERROR(cudaErrorStreamCaptureIsolation,
                   "dependency created on uncaptured work in another stream"),
      SORTIE_ERROR(cudaErrorCapturedEvent,
                   "operation not permitted on an event last recorded in a capturing stream"),
      SORTIE_ERROR(cudaErrorStreamCaptureWrongThread,
                   "attempt to terminate a thread-local capture sequence from another thread"),
  };
#undef SORTIE_ERROR
  const auto found = std::ranges::find(kTexts, error, &ErrorText::error);
  SORTIE_CHECK(found != kTexts.end(), "CUDA's error {} has no text", static_cast<int>(error));
  return *found;
}

}  // namespace

cudaError_t failed(cudaError_t error) {
  return last_error = error;
}

}  // namespace emulated_cuda

using namespace emulated_cuda;

const char* cudaGetErrorName(cudaError_t error) {
  return text_of(error).name;
}
const char* cudaGetErrorString(cudaError_t error) {
  return text_of(error).text;
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
