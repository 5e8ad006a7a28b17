// Construction of the CPU backend, and what oneDNN reports about this CPU.
#include "trainer/ops/cpu/cpu_backend.h"

#include <fmt/core.h>

#include <fstream>

#include "trainer/ops/onednn_version.h"

namespace sortie::trainer {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (const auto colon = line.find(": "); colon != std::string::npos)
        return line.substr(colon + 2);
  return "unknown CPU";
}

/// The set for Sortie's own kernels. It respects the limit that ONEDNN_MAX_CPU_ISA sets, so that
/// hosts with different CPUs can be made to compute the same bits.
ops::Isa isa_within_limit() {
  const std::string limit = cpu_facts().isa;
  const ops::Isa most = limit.starts_with("avx512") ? ops::Isa::avx512
                        : limit.starts_with("avx2") ? ops::Isa::avx2
                                                    : ops::Isa::baseline;
  return std::min(most, ops::best_isa());
}

}  // namespace

CpuFacts cpu_facts() {
  struct Known {
    dnnl::cpu_isa isa;
    const char* name;
    bool multiplies_bf16, amx;
  };
  static constexpr Known kKnown[] = {
      {dnnl::cpu_isa::sse41, "sse41", false, false},
      {dnnl::cpu_isa::avx, "avx", false, false},
      {dnnl::cpu_isa::avx2, "avx2", false, false},
      {dnnl::cpu_isa::avx512_mic, "avx512_mic", false, false},
      {dnnl::cpu_isa::avx512_mic_4ops, "avx512_mic_4ops", false, false},
      {dnnl::cpu_isa::avx512_core, "avx512_core", false, false},
      {dnnl::cpu_isa::avx512_core_vnni, "avx512_core_vnni", false, false},
      {dnnl::cpu_isa::avx512_core_bf16, "avx512_core_bf16", true, false},
      {dnnl::cpu_isa::avx512_core_amx, "avx512_core_amx", true, true},
      {dnnl::cpu_isa::avx2_vnni, "avx2_vnni", false, false},
  };
  const dnnl::cpu_isa effective = dnnl::get_effective_cpu_isa();
  for (const Known& known : kKnown)
    if (known.isa == effective) return {cpu_model(), known.name, known.multiplies_bf16, known.amx};
  return {cpu_model(), "unknown", false, false};
}

namespace ops {

std::string onednn_version() {
  const dnnl_version_t& version = *dnnl_version();
  return fmt::format("{}.{}.{} {}", version.major, version.minor, version.patch, version.hash);
}

CpuBackend::CpuBackend(int threads) {
  state.kernels = &kernels_of(isa_within_limit());
  omp_set_num_threads(threads);
}

Isa isa_of(ExecutionContext& context) {
  for (const Isa isa : {Isa::baseline, Isa::avx2})
    if (isa <= best_isa() && cpu_state(context).kernels == &kernels_of(isa)) return isa;
  return Isa::avx512;
}

void use_isa(ExecutionContext& context, Isa isa) {
  cpu_state(context).kernels = &kernels_of(isa);
}

}  // namespace ops
}  // namespace sortie::trainer
