// Chooses the kernel table at run time.
#include "common/base/check.h"
#include "trainer/ops/kernels/table.h"

namespace sortie::trainer::ops {

namespace baseline {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}

namespace {

Isa isa_of_cpu() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return avx512 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::baseline;
}

}  // namespace

const char* isa_name(Isa isa) {
  return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "baseline";
}

Isa best_isa() {
  return isa_of_cpu();
}

const Kernels& kernels_of(Isa isa) {
  SORTIE_CHECK(isa <= isa_of_cpu(), "this CPU has no {}", isa_name(isa));
  return isa == Isa::avx512 ? avx512::kKernels
         : isa == Isa::avx2 ? avx2::kKernels
                            : baseline::kKernels;
}

}  // namespace sortie::trainer::ops
