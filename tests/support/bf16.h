// Helpers for tests of bf16. CPUs without AVX-512 do not multiply bf16, and the trainer refuses it
// there.
#pragma once

#include <cstdio>

#include "tests/support/test_device.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer::test {

/// Whether the tested device multiplies bf16.
inline bool multiplies_bf16() {
  return on_gpu() || cpu_facts().multiplies_bf16;
}

/// The type for cases that use bf16 if possible: bf16 or f32.
inline DType narrow_type() {
  return multiplies_bf16() ? DType::bf16 : DType::f32;
}

/// Cases that test only bf16 return if this is true. It prints a line by which ctest shows them as
/// skipped.
inline bool skips_bf16() {
  if (multiplies_bf16()) return false;
  std::puts("skipped: this CPU does not multiply bf16");
  return true;
}

}  // namespace sortie::trainer::test
