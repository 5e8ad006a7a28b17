// Cosine and powers with the same bits on every x86-64 CPU and with every libm: for values that
// each rank computes for itself and that must be equal on all of them. A libm picks its code by the
// CPU (with FMA or without), and may change from version to version.
#pragma once

#include <cstdint>

#include "common/base/host_device.h"

namespace sortie::trainer {

/// Cosine of 2 pi `turns`, for turns in [0, 1].
double portable_cos_of_turns(double turns);
/// 2^x for x in [-1, 0].
double portable_exp2(double x);
/// base^exponent by repeated squaring; exponent >= 0. Multiplications only, so that compilers have
/// nothing to contract.
SORTIE_HOST_DEVICE inline double portable_power(double base, std::int64_t exponent) {
  double power = 1.0;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) power *= base;
    base *= base;
  }
  return power;
}

}  // namespace sortie::trainer
