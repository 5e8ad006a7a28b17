#include "trainer/loop/compute_device.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

#include "common/base/log.h"

namespace sortie::trainer {
namespace {

constexpr int kOldestGpu = 80;     // compute capability 8.0: bf16 products
constexpr int kOldestFp8Gpu = 89;  // FP8 products

std::string capability_text(int capability) {
  return fmt::format("{}.{}", capability / 10, capability % 10);
}

Result<ComputeDevice> open_gpu(const DevicePlace& place) {
  SORTIE_ASSIGN_OR_RETURN(DeviceModule * module, load_cuda_module());
  SORTIE_ASSIGN_OR_RETURN(const std::vector<GpuFacts> gpus, module->gpus());
  SORTIE_ASSIGN_OR_RETURN(const int index, gpu_of_place(place, static_cast<int>(gpus.size())));
  ComputeDevice chosen;
  chosen.device = {.kind = DeviceKind::cuda, .index = index};
  chosen.gpu = gpus[static_cast<std::size_t>(index)];
  chosen.libraries = module->libraries();
  SORTIE_TRY(check_gpu(*chosen.gpu));
  SORTIE_ASSIGN_OR_RETURN(chosen.free_bytes, module->open(chosen.device));
  return chosen;
}

}  // namespace

std::string ComputeDevice::name() const {
  if (!gpu) return "cpu";
  return fmt::format("{} ({})", gpu->name, capability_text(gpu->compute_capability));
}

Result<> check_gpu(const GpuFacts& gpu) {
  if (gpu.compute_capability >= kOldestGpu) return {};
  return fail(ErrorCode::unsupported,
              fmt::format("{} has compute capability {}, and {} or newer is needed", gpu.name,
                          capability_text(gpu.compute_capability), capability_text(kOldestGpu)));
}

DevicePlace place_from_environment(int local_rank, int local_ranks) {
  DevicePlace place{.local_rank = local_rank, .local_ranks = local_ranks, .visible = {}};
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) place.visible = visible;
  return place;
}

Result<int> gpu_of_place(const DevicePlace& place, int gpus) {
  const bool own = gpus == 1 && place.visible && place.visible->find(',') == std::string::npos;
  if (own) return 0;
  const int ranks = std::max(place.local_ranks, place.local_rank + 1);
  if (gpus < ranks)
    return fail(ErrorCode::unsupported,
                fmt::format("{} GPU{} for {} ranks of this host; set the slots of the host to the "
                            "GPUs that it has, or CUDA_VISIBLE_DEVICES to one for each rank",
                            gpus, gpus == 1 ? "" : "s", ranks));
  return place.local_rank;
}

Result<ComputeDevice> choose_device(const std::string& wanted, const DevicePlace& place,
                                    std::string_view key) {
  ComputeDevice cpu;
  cpu.why_cpu = fmt::format("{} = \"{}\"", key, wanted);
  if (wanted == "cpu") return cpu;
  if (wanted == "auto" && !may_have_gpus()) {
    cpu.why_cpu += ": there is no NVIDIA driver";
    log::debug("computes on the CPU: {}", cpu.why_cpu);
    return cpu;
  }
  Result<ComputeDevice> gpu = open_gpu(place);
  if (gpu) return gpu;
  if (wanted == "auto") {
    cpu.why_cpu += ": " + gpu.error().message;
    log::warning("computes on the CPU: {}", cpu.why_cpu);
    return cpu;
  }
  return std::unexpected(
      with_context(std::move(gpu).error(), fmt::format("{} = \"{}\"", key, wanted)));
}

Result<DType> choose_precision(const std::string& precision, const CpuFacts& cpu,
                               const std::optional<GpuFacts>& gpu) {
  if (precision == "f32") return DType::f32;
  if (precision == "fp8") {
    if (gpu && gpu->compute_capability >= kOldestFp8Gpu) return DType::bf16;
    const std::string here = gpu ? fmt::format("{} has compute capability {}", gpu->name,
                                               capability_text(gpu->compute_capability))
                                 : fmt::format("this rank computes on a CPU ({})", cpu.model);
    return fail(ErrorCode::unsupported,
                fmt::format("model.precision = \"fp8\": {}, and products in FP8 need a GPU of "
                            "compute capability {} or newer; {}, or use \"bf16\"",
                            here, capability_text(kOldestFp8Gpu),
                            gpu ? "train on such GPUs"
                                : "set trainer.device = \"cuda\" on hosts that have one"));
  }
  if (gpu) return DType::bf16;  // every supported GPU has bf16 products
  if (precision == "auto") return cpu.multiplies_bf16 ? DType::bf16 : DType::f32;
  if (cpu.multiplies_bf16) return DType::bf16;
  return fail(ErrorCode::unsupported, fmt::format("model.precision = \"bf16\": this CPU ({}, {}) "
                                                  "has no bf16 products, f32 is faster here; use "
                                                  "\"auto\" or \"f32\"",
                                                  cpu.model, cpu.isa));
}

std::string name_of_precision(const config::ModelConfig& model, DType chosen) {
  return std::string(model.precision == "fp8" ? "fp8" : dtype_name(chosen));
}

}  // namespace sortie::trainer
