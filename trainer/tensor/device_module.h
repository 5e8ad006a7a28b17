// DeviceModule: what computes on NVIDIA GPUs, in a shared object of its own beside the program. It
// is loaded when a GPU is asked for, so that one program runs on hosts with CUDA and without.
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
  int clock_mhz = 0;  // the highest
  std::size_t memory_bytes = 0;
};

/// What a device or its driver refused in mid-step. Ends the rank with its message.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class DeviceModule {
 public:
  virtual ~DeviceModule() = default;

  /// The libraries that it computes with and their versions, as they say at run time.
  virtual std::string libraries() const = 0;
  /// The GPUs that this process may use, in the order of their indices. ErrorCode::unsupported with
  /// the cause: no driver, a driver that is too old (both versions), no GPU.
  virtual Result<std::vector<GpuFacts>> gpus() = 0;
  /// Begins to use a GPU, which takes some of its memory: how many bytes are free then.
  /// ErrorCode::unsupported with the cause: another process has it for itself, it is broken.
  virtual Result<std::size_t> open(Device device) = 0;

  /// The memory of that GPU; one per device, shared by all contexts of the process.
  virtual std::shared_ptr<DeviceMemory> memory(Device device) = 0;
  virtual std::unique_ptr<ops::Backend> backend(Device device) = 0;
  virtual std::unique_ptr<Streams> streams(Device device) = 0;
  /// What carries collectives between GPUs; one, for as long as the process.
  virtual DeviceGroups& groups() = 0;
};

inline constexpr const char* kCudaModuleFile = "libsortie-cuda.so";

/// What libsortie-cuda.so exports as `sortie_device_module`: the module, which lives as long as the
/// process. `build` is kDeviceModuleBuild (device_module_build.h) of who asks; null when it is
/// another build's.
using MakeDeviceModule = DeviceModule* (*)(const char* build);

/// Loads the module from beside the program, or from where SORTIE_CUDA_MODULE says; once.
/// ErrorCode::unsupported says which file could not be loaded and why.
Result<DeviceModule*> load_cuda_module();
/// Whether load_cuda_module() may find GPUs: there is a driver, or SORTIE_CUDA_MODULE names a
/// module. Without one the module need not be loaded, whose libraries take 160 MB of each process.
bool may_have_gpus();
/// The module, which load_cuda_module() has found.
DeviceModule& cuda_module();

}  // namespace sortie::trainer
