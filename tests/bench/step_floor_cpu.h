// The floor of a training step: the time of the step's own matrix products alone in oneDNN, each in
// the best of its layouts and primitives. A step can not be faster without better products;
// floor / step is the share of products in a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/tensor/dtype.h"

namespace sortie::bench {

/// The GPT whose step is measured: multi-head attention, two-matrix MLP, one vocabulary product.
struct GptShape {
  std::int64_t layers = 12, hidden = 768, heads = 12, ffn = 3072, vocab = 50304;
  std::int64_t batch = 4, tokens = 256;
};

struct FloorRow {
  std::string product;
  std::string best;    // the variant that won
  std::int64_t calls;  // per step
  double flop;         // per call
  double seconds;      // per call, best of several
};

/// Measures every product of the step. Takes some seconds; the machine should be idle.
std::vector<FloorRow> measure_step_floor(const GptShape& shape, trainer::DType dtype, int threads);

/// Sum of calls * seconds.
double floor_seconds(const std::vector<FloorRow>& rows);

void print_floor(const std::vector<FloorRow>& rows);

}  // namespace sortie::bench
