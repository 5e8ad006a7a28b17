// DeviceModule: the interface of the shared object that computes on NVIDIA GPUs. It is loaded only
// when a GPU is requested, so that one program runs on hosts with and without CUDA.
#pragma once

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/tensor/device.h"
#include "trainer/tensor/device_memory.h"
#include "trainer/tensor/stream.h"

namespace sortie::trainer {

namespace ops {
class Backend;
}
class DeviceGroups;

/// A GPU as its driver describes it.
struct GpuFacts {
  std::string name;            // "NVIDIA H100 80GB HBM3"
  int compute_capability = 0;  // 90 = 9.0
  int multiprocessors = 0;
  int clock_mhz = 0;         // of the multiprocessors, maximum
  int memory_clock_mhz = 0;  // maximum; 0 = unknown
  std::size_t memory_bytes = 0;
};

/// The versions that a device module finds at run time, as "13.0".
struct DeviceVersions {
  std::string driver_cuda;  // newest CUDA that the driver supports; empty without a driver
  std::string cuda;         // the runtime in the module
  std::string cublaslt;
  std::string nccl;
};

/// A failure that a device or its driver reports during a step. Ends the rank with its message.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class DeviceModule {
 public:
  virtual ~DeviceModule() = default;

  virtual DeviceVersions versions() const = 0;
  /// The libraries that it computes with and their versions, as reported at run time.
  std::string libraries() const;
  /// Returns the GPUs that this process may use, in index order. ErrorCode::unsupported with the
  /// cause: no driver, a driver that is too old (names both versions), no GPU.
  virtual Result<std::vector<GpuFacts>> gpus() = 0;
  /// Starts to use a GPU, which takes some of its memory, and returns the bytes that are then free.
  /// ErrorCode::unsupported with the cause: another process uses it exclusively, its memory is used
  /// up, it is broken.
  virtual Result<std::size_t> open(Device device) = 0;

  /// The memory of that GPU. One object per device, shared by all contexts of the process.
  virtual std::shared_ptr<DeviceMemory> memory(Device device) = 0;
  virtual std::unique_ptr<ops::Backend> backend(Device device) = 0;
  virtual std::unique_ptr<Streams> streams(Device device) = 0;
  /// The collectives between GPUs. One object, valid as long as the process.
  virtual DeviceGroups& groups() = 0;
};

inline constexpr const char* kCudaModuleFile = "libsortie-cuda.so";

/// Type of the function `sortie_device_module` that libsortie-cuda.so exports. Returns the module,
/// which lives as long as the process; nullptr if `build`, the caller's kDeviceModuleBuild
/// (device_module_build.h), differs from the module's.
using MakeDeviceModule = DeviceModule* (*)(const char* build);

/// Loads the module once: from the path in SORTIE_CUDA_MODULE if set, else from the program's
/// directory or ../lib/sortie. ErrorCode::unsupported names the file and why it cannot be loaded,
/// or that it belongs to another build.
Result<DeviceModule*> load_cuda_module();
/// True if load_cuda_module() may find GPUs: a driver is installed or SORTIE_CUDA_MODULE is set.
/// Otherwise the module need not be loaded; its libraries take 160 MB in each process.
bool may_have_gpus();
/// The loaded module. load_cuda_module() must have succeeded before.
DeviceModule& cuda_module();

}  // namespace sortie::trainer
