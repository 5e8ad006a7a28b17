// The module that libsortie-cuda.so exports.
#include <cublasLt.h>
#include <fmt/core.h>

#include <map>
#include <mutex>
#include <string_view>

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/error.h"
#include "trainer/ops/cuda/memory.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/parallel/nccl.h"
#include "trainer/tensor/device_module.h"
#include "trainer/tensor/device_module_build.h"

namespace sortie::trainer::ops::cuda {
namespace {

std::string version_text(int version) {  // 13020 = 13.2
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

class CudaModule final : public DeviceModule {
 public:
  DeviceVersions versions() const override {
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    const std::size_t products = cublasLtGetVersion();  // 130100 = 13.1.0
    return {
        .driver_cuda = driver > 0 ? version_text(driver) : "",
        .cuda = version_text(runtime),
        .cublaslt = fmt::format("{}.{}.{}", products / 10000, products / 100 % 100, products % 100),
        .nccl = nccl_version()};
  }

  Result<std::vector<GpuFacts>> gpus() override {
    int count = 0, driver = 0, runtime = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (error == cudaErrorInsufficientDriver && driver == 0)
      return fail(ErrorCode::unsupported,
                  "no NVIDIA driver is loaded; install one, or use \"cpu\"");
    if (error == cudaErrorInsufficientDriver)
      return fail(ErrorCode::unsupported,
                  fmt::format("the NVIDIA driver supports CUDA {}, this build needs {}; install a "
                              "newer driver",
                              version_text(driver), version_text(runtime)));
    if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0))
      return fail(
          ErrorCode::unsupported,
          "this process sees no GPU; look at nvidia-smi, CUDA_VISIBLE_DEVICES and the slots "
          "of the host");
    if (error != cudaSuccess)
      return fail(ErrorCode::unsupported,
                  fmt::format("GPUs can not be used: {}", cudaGetErrorString(error)));
    std::vector<GpuFacts> gpus;
    for (int index = 0; index < count; ++index) {
      cudaDeviceProp properties{};
      check(cudaGetDeviceProperties(&properties, index), "a look at a GPU");
      GpuFacts facts;
      facts.name = properties.name;
      facts.compute_capability = 10 * properties.major + properties.minor;
      facts.multiprocessors = properties.multiProcessorCount;
      int clock_khz = 0, memory_khz = 0;
      check(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, index), "a look at a GPU");
      facts.clock_mhz = clock_khz / 1000;
      (void)cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, index);
      facts.memory_clock_mhz = memory_khz / 1000;
      facts.memory_bytes = properties.totalGlobalMem;
      gpus.push_back(std::move(facts));
    }
    return gpus;
  }

  Result<std::size_t> open(Device device) override {
    std::size_t free = 0, all = 0;
    cudaError_t error = cudaSetDevice(device.index);
    if (error == cudaSuccess) error = cudaMemGetInfo(&free, &all);
    if (error == cudaSuccess) return free;
    (void)cudaGetLastError();
    return fail(ErrorCode::unsupported,
                fmt::format("GPU {} can not be used: {} ({}); look at nvidia-smi: another process "
                            "may have it for itself, all of its memory may be in use, or it is "
                            "broken",
                            device.index, cudaGetErrorString(error), cudaGetErrorName(error)));
  }

  std::shared_ptr<DeviceMemory> memory(Device device) override {
    std::lock_guard lock(mutex_);
    auto& memory = memories_[device.index];
    if (!memory) memory = std::make_shared<CudaMemory>(device);
    return memory;
  }
  std::unique_ptr<Backend> backend(Device device) override {
    return std::make_unique<CudaBackend>(device);
  }
  std::unique_ptr<Streams> streams(Device device) override {
    return std::make_unique<CudaStreams>(device);
  }
  DeviceGroups& groups() override { return nccl_groups(); }

 private:
  std::mutex mutex_;
  std::map<int, std::shared_ptr<CudaMemory>> memories_;
};

}  // namespace
}  // namespace sortie::trainer::ops::cuda

extern "C" [[gnu::visibility("default")]] sortie::trainer::DeviceModule* sortie_device_module(
    const char* build) {
  if (std::string_view(build) != sortie::trainer::kDeviceModuleBuild) return nullptr;
  // Never destroyed: the end of the process releases its GPUs.
  static auto* module = new sortie::trainer::ops::cuda::CudaModule;
  return module;
}
