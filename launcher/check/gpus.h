// The GPUs of a host as its report shows them, and what the ranks there will compute on.
#pragma once

#include <string>
#include <vector>

#include "launcher/check/evaluate.h"

namespace sortie::launcher::check {

/// Number of GPUs: as nvidia-smi lists them, else as the drivers do, else as the trainer sees them.
std::size_t gpu_count(const HostResult& host);

/// A GPU that nvidia-smi lists, with its number there.
struct UsedGpu {
  std::uint32_t number = 0;
  OneGpu gpu;
};
/// The GPUs of the host's slots; all of them if no program was named. Empty if a slot has none.
std::vector<UsedGpu> used_gpus(const HostResult& host, const Expectations& expect);

/// Different models of the GPUs that its ranks use, in order, at most four; as the trainer sees
/// them if it has answered. Empty: unknown, or none.
std::vector<std::string> gpu_models(const HostResult& host, const Expectations& expect);

/// "8 x NVIDIA H100 80GB HBM3 (79.6 GiB, compute capability 9.0, at most 1980 MHz), driver
/// 580.65.06"; values that are unknown are left out. Empty without GPUs.
std::string gpu_text(const HostResult& host);

/// "CUDA 13.0 (driver: 13.0), cuBLASLt 13.1.0, NCCL 2.28.9"; empty if the module with the GPU code
/// does not load, or the trainer was not asked.
std::string library_text(const HostResult& host);

/// What the ranks of a host will compute on.
struct Outlook {
  enum class Kind { unknown, cpu, gpu };
  Kind kind = Kind::unknown;
  std::string why;  // of `cpu`, if the job may use GPUs: "reason; what to do"
};

/// Decides as the trainer does at its start (trainer/loop/compute_device.h).
Outlook outlook_of(const HostResult& host, const Expectations& expect);

}  // namespace sortie::launcher::check
