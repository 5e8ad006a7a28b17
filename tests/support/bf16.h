// Tests of bf16, which processors without AVX-512 do not multiply and on which the trainer refuses
// it.
#pragma once

#include <cstdio>

#include "tests/support/test_device.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer::test {

/// Where tests compute, bf16 is multiplied.
inline bool multiplies_bf16() {
  return on_gpu() || cpu_facts().multiplies_bf16;
}

/// For cases that try bf16 where they can.
inline DType narrow_type() {
  return multiplies_bf16() ? DType::bf16 : DType::f32;
}

/// Cases that are about bf16 alone return where this is true; by what it prints, ctest shows them
/// as skipped.
inline bool skips_bf16() {
  if (multiplies_bf16()) return false;
  std::puts("skipped: this CPU does not multiply bf16");
  return true;
}

}  // namespace sortie::trainer::test
