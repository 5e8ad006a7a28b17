#include "launcher/check/gpus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/quantity.h"

namespace sortie::launcher::check {
namespace {

/// More models than a host has; a host may report anything.
constexpr std::size_t kMaxModels = 4;

/// Whether the trainer has answered, and sees GPUs.
bool trainer_sees_gpus(const HostResult& host) {
  return host.report.trainer && !host.report.trainer->gpus.empty();
}

std::size_t ranks_of(const HostResult& host) {
  return std::max<std::size_t>(host.slots.size(), 1);
}

/// Names with their counts: "8 x NVIDIA H100".
std::string names_text(const std::vector<std::string>& names) {
  std::vector<std::string> parts;
  std::vector<std::string> seen;
  for (const std::string& name : names) {
    if (std::ranges::find(seen, name) != seen.end()) continue;
    seen.push_back(name);
    parts.push_back(fmt::format("{} x {}", std::ranges::count(names, name), name));
  }
  if (parts.size() > kMaxModels)
    return fmt::format("{} GPUs of {} models", names.size(), parts.size());
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// The values of one GPU that users compare.
std::string values_text(const OneGpu& gpu) {
  std::vector<std::string> parts;
  if (gpu.memory_mib > 0) parts.push_back(size_text(gpu.memory_mib * kMiB));
  if (!gpu.compute_capability.empty())
    parts.push_back("compute capability " + gpu.compute_capability);
  if (gpu.max_sm_clock_mhz > 0)
    parts.push_back(fmt::format("at most {} MHz", gpu.max_sm_clock_mhz));
  return parts.empty() ? "" : fmt::format(" ({})", fmt::join(parts, ", "));
}

/// The same, as the trainer sees the GPU.
OneGpu seen_by_trainer(const TrainerGpu& gpu) {
  OneGpu one;
  one.name = gpu.name;
  one.memory_mib = gpu.memory_bytes / kMiB;
  one.max_sm_clock_mhz = gpu.clock_mhz;
  if (gpu.compute_capability > 0)
    one.compute_capability =
        fmt::format("{}.{}", gpu.compute_capability / 10, gpu.compute_capability % 10);
  return one;
}

}  // namespace

std::size_t gpu_count(const HostResult& host) {
  std::size_t listed = 0;
  if (host.report.gpus) {
    const GpuFacts& facts = *host.report.gpus;
    if (!facts.smi.empty() && facts.smi_error.empty()) return facts.gpus.size();
    listed = std::max({facts.driver, facts.devices, facts.rocm});
  }
  if (listed == 0 && trainer_sees_gpus(host)) return host.report.trainer->gpus.size();
  return listed;
}

std::vector<UsedGpu> used_gpus(const HostResult& host, const Expectations& expect) {
  std::vector<UsedGpu> used;
  if (!host.report.gpus) return used;
  const std::vector<OneGpu>& gpus = host.report.gpus->gpus;
  if (expect.program.empty()) {
    for (const OneGpu& gpu : gpus) used.push_back({static_cast<std::uint32_t>(used.size()), gpu});
    return used;
  }
  for (const int slot : host.slots) {
    if (slot < 0 || static_cast<std::size_t>(slot) >= gpus.size()) return {};
    used.push_back({static_cast<std::uint32_t>(slot), gpus[static_cast<std::size_t>(slot)]});
  }
  return used;
}

std::vector<std::string> gpu_models(const HostResult& host, const Expectations& expect) {
  std::vector<std::string> models;
  const auto add = [&models](const std::string& name) {
    if (!name.empty() && models.size() < kMaxModels &&
        std::ranges::find(models, name) == models.end())
      models.push_back(name);
  };
  if (trainer_sees_gpus(host)) {
    const std::vector<TrainerGpu>& seen = host.report.trainer->gpus;
    for (std::size_t i = 0; i < std::min(seen.size(), ranks_of(host)); ++i) add(seen[i].name);
  } else {
    for (const UsedGpu& used : used_gpus(host, expect)) add(used.gpu.name);
  }
  return models;
}

std::string gpu_text(const HostResult& host) {
  const std::size_t count = gpu_count(host);
  if (count == 0) return "";
  std::vector<OneGpu> gpus;
  if (host.report.gpus && !host.report.gpus->gpus.empty()) {
    gpus = host.report.gpus->gpus;
  } else if (trainer_sees_gpus(host)) {
    for (const TrainerGpu& gpu : host.report.trainer->gpus) gpus.push_back(seen_by_trainer(gpu));
  }
  std::vector<std::string> names;
  for (const OneGpu& gpu : gpus) names.push_back(gpu.name);
  std::string text = names.empty() ? counted(count, "GPU") : names_text(names);
  const auto same = [&](const OneGpu& gpu) {
    return gpu.name == gpus.front().name && values_text(gpu) == values_text(gpus.front());
  };
  if (!gpus.empty() && std::ranges::all_of(gpus, same)) text += values_text(gpus.front());
  if (host.report.gpus && !host.report.gpus->driver_version.empty())
    text += ", driver " + host.report.gpus->driver_version;
  return text;
}

std::string library_text(const HostResult& host) {
  if (!host.report.trainer || host.report.trainer->cuda.empty()) return "";
  const TrainerFacts& facts = *host.report.trainer;
  return fmt::format(
      "CUDA {}{}, cuBLASLt {}, NCCL {}", facts.cuda,
      facts.driver_cuda.empty() ? "" : fmt::format(" (driver: {})", facts.driver_cuda),
      facts.cublaslt, facts.nccl);
}

Outlook outlook_of(const HostResult& host, const Expectations& expect) {
  if (expect.device == "cpu") return {Outlook::Kind::cpu, ""};
  if (!host.report.trainer || !host.report.trainer->error.empty())
    return {Outlook::Kind::unknown, ""};
  const TrainerFacts& facts = *host.report.trainer;
  if (!facts.problem.empty()) return {Outlook::Kind::cpu, facts.problem};
  const std::size_t needed = expect.one_gpu ? 1 : ranks_of(host);
  if (facts.gpus.size() < needed)
    return {Outlook::Kind::cpu,
            fmt::format("{} for {} of this host; set its slots to the GPUs that it has",
                        counted(facts.gpus.size(), "GPU"), counted(needed, "rank"))};
  for (std::size_t i = 0; i < needed; ++i)
    if (!facts.gpus[i].problem.empty())
      return {Outlook::Kind::cpu, facts.gpus[i].problem + "; leave the host out"};
  return {Outlook::Kind::gpu, ""};
}

}  // namespace sortie::launcher::check
