// ComputeDevice: the device that a rank, or a verb of sortie-train, computes on.
#pragma once

#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "trainer/tensor/context.h"
#include "trainer/tensor/device_module.h"

namespace sortie::trainer {

struct ComputeDevice {
  Device device = {};
  std::optional<GpuFacts> gpu;  // if it is one
  std::size_t free_bytes = 0;   // of GPU memory, at the start
  std::string libraries;        // used on it, with their versions
  /// Why it is the CPU: why "auto" has found no GPU, or that the setting asks for the CPU.
  std::string why_cpu = {};

  /// "cpu", or the GPU's name and compute capability.
  std::string name() const;
};

/// What decides which of the visible GPUs a process uses.
struct DevicePlace {
  int local_rank = 0;
  int local_ranks = 1;  // processes of the host that share its GPUs
  /// CUDA_VISIBLE_DEVICES, if set. If it names a single GPU, that one belongs to this process.
  std::optional<std::string> visible;
};
DevicePlace place_from_environment(int local_rank, int local_ranks);

/// Returns the index of the GPU for `place`, out of `gpus` visible ones. ErrorCode::unsupported if
/// there are fewer GPUs than processes.
Result<int> gpu_of_place(const DevicePlace& place, int gpus);

/// ErrorCode::unsupported if the GPU is too old for Sortie's kernels.
Result<> check_gpu(const GpuFacts& gpu);

/// Opens the device for a value of trainer.device: "cpu"; "cuda"; "auto" = a GPU if this process
/// has one, else the CPU, with a warning if there is a driver or SORTIE_CUDA_MODULE.
/// ErrorCode::unsupported with the cause if "cuda" is not available. `key` names the setting in
/// messages.
Result<ComputeDevice> choose_device(const std::string& wanted, const DevicePlace& place,
                                    std::string_view key);

/// Returns f32 or bf16 for a value of model.precision. ErrorCode::unsupported if the device does
/// not support it. "fp8" returns bf16: only linear layers are multiplied in FP8.
Result<DType> choose_precision(const std::string& precision, const CpuFacts& cpu,
                               const std::optional<GpuFacts>& gpu = {});

/// Name of the chosen precision: "f32", "bf16", or "fp8" if the model requests it.
std::string name_of_precision(const config::ModelConfig& model, DType chosen);

}  // namespace sortie::trainer
