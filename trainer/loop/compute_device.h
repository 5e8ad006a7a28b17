// ComputeDevice: what a rank, or a verb of sortie-train, computes on.
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
  std::optional<GpuFacts> gpu;  // where it is one
  std::size_t free_bytes = 0;   // of its memory, at the start
  std::string libraries;        // that compute on it, with their versions

  /// "cpu", or the GPU's name and compute capability.
  std::string name() const;
};

/// Which of the GPUs that a process sees is its own.
struct DevicePlace {
  int local_rank = 0;
  int local_ranks = 1;  // processes of the host that share its GPUs
  /// CUDA_VISIBLE_DEVICES as it is set; with one GPU in it, it is this process's own.
  std::optional<std::string> visible;
};
DevicePlace place_from_environment(int local_rank, int local_ranks);

/// The index of the GPU of that place, of `gpus` that the process sees. ErrorCode::unsupported
/// where there are fewer than processes.
Result<int> gpu_of_place(const DevicePlace& place, int gpus);

/// As trainer.device says: "cpu"; "cuda"; "auto": a GPU where this process has one, else the CPU.
/// ErrorCode::unsupported with the cause where "cuda" is not there; `key` names what asked for it.
Result<ComputeDevice> choose_device(const std::string& wanted, const DevicePlace& place,
                                    std::string_view key);

/// f32 or bf16 from model.precision and what computes; what that can not do is an
/// ErrorCode::unsupported. "fp8" is bf16 here: linear layers alone are multiplied in FP8.
Result<DType> choose_precision(const std::string& precision, const CpuFacts& cpu,
                               const std::optional<GpuFacts>& gpu = {});

/// Of what that gave: "f32", "bf16", or "fp8" where the model asks for it.
std::string name_of_precision(const config::ModelConfig& model, DType chosen);

}  // namespace sortie::trainer
