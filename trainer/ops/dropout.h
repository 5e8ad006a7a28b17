// Dropout (Srivastava et al. 2014) from a counter-based generator: whether an element is kept is a
// function of (key, sample, element), the same on every layout, in every recomputation and after
// every resume.
#pragma once

#include <cstdint>

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

struct Dropout {
  float probability = 0.0f;  // of an element to become 0; the others are divided by 1 - p
  std::uint64_t key = 0;     // of this place in the model, see random_key()
  /// Sample b of the batch is number first_sample + b of the run. If `first` is defined, i64 [1] on
  /// the device, its value is added: work that is captured as a graph reads it anew in every step.
  std::int64_t first_sample = 0;
  /// For a rank that holds a part of each sample: number of elements before the part.
  std::int64_t first_element = 0;
  Tensor first{};
  explicit operator bool() const { return probability > 0.0f; }
};

/// True if `first` is undefined or an i64 [1].
bool is_sample_number(const Dropout& dropout);

/// y = dropout(x), x and y [B, ...] or [B * T, C] dense with `samples` = B samples one after
/// another. y may be x. The gradient is the same op on dy.
void dropout(ExecutionContext& context, const Dropout& dropout, std::int64_t samples,
             const Tensor& x, Tensor& y);

}  // namespace sortie::trainer::ops
