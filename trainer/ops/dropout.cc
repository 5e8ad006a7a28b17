// Checks of dropout, and the generator's state.
#include "trainer/ops/dropout.h"

#include <cmath>

#include "trainer/ops/dropout_impl.h"

namespace sortie::trainer::ops {
namespace {

/// SplitMix64 finaliser (Steele, Lea & Flood 2014).
std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

DropoutRow dropout_row(const Dropout& dropout, std::int64_t b, std::int64_t begin) {
  const auto sample = static_cast<std::uint64_t>(dropout.first_sample + b);
  const auto position = static_cast<std::uint64_t>(begin);
  const std::uint64_t high = position >> 32;
  const std::uint64_t key =
      mix(mix(dropout.key + 0x9e3779b97f4a7c15ull * (sample + 1)) + 0x9e3779b97f4a7c15ull * high);
  DropoutRow row{};
  row.key0 = static_cast<std::uint32_t>(key);
  row.key1 = static_cast<std::uint32_t>(key >> 32);
  row.begin = static_cast<std::uint32_t>(position);
  row.threshold = static_cast<std::uint32_t>(
      std::min(4294967295.0, std::floor(static_cast<double>(dropout.probability) * 0x1p32)));
  row.scale = 1.0f / (1.0f - dropout.probability);
  return row;
}

void dropout(ExecutionContext& context, const Dropout& dropout, std::int64_t samples,
             const Tensor& x, Tensor& y) {
  SORTIE_CHECK(x.dtype() == y.dtype() && x.dtype() != DType::i32 && x.shape() == y.shape() &&
                   x.dense() && y.dense(),
               "x {} {}, y {} {}", dtype_name(x.dtype()), x.shape().to_string(),
               dtype_name(y.dtype()), y.shape().to_string());
  SORTIE_CHECK(dropout.probability > 0.0f && dropout.probability < 1.0f && samples > 0 &&
                   x.elements() % samples == 0,
               "dropout {} of {} over {} samples", dropout.probability, x.shape().to_string(),
               samples);
  dropout_cpu(context, dropout, samples, x, y);
}

}  // namespace sortie::trainer::ops
