// Tests of attention over sequences that are divided into many tiles of keys.
#include "tests/trainer/ops/attention_case.h"

namespace sortie::trainer {
namespace {

// Lengths at, below and above whole tiles; grouped heads; values of a different width; windows that
// are longer than a tile and begin anywhere; documents that leave tiles empty.
constexpr AttentionCase kCases[] = {
    {{1, 1025, 2, 1, 8, 0}, 0, 0, 0.0f},    {{1, 1536, 1, 1, 24, 16}, 0, 0, 0.0f},
    {{1, 1300, 1, 1, 8, 0}, 1100, 0, 0.0f}, {{1, 2100, 1, 1, 8, 0}, 1027, 0, 0.0f},
    {{2, 1100, 1, 1, 8, 0}, 0, 400, 0.0f},  {{1, 1100, 2, 2, 8, 12}, 1050, 700, 0.25f},
    {{1, 1600, 1, 1, 8, 0}, 0, 1030, 0.0f},
};

// The same for tiles of 128, 64 and 32 rows.
constexpr AttentionCase kGpuCases[] = {
    {{1, 257, 2, 1, 8, 0}, 0, 0, 0.0f},     {{1, 256, 1, 1, 24, 16}, 0, 0, 0.0f},
    {{1, 255, 1, 1, 8, 0}, 140, 0, 0.0f},   {{2, 150, 1, 1, 8, 0}, 0, 70, 0.0f},
    {{1, 200, 2, 2, 8, 12}, 97, 70, 0.25f}, {{1, 230, 1, 1, 8, 0}, 0, 130, 0.0f},
};

}  // namespace

TEST_CASE("attention over many tiles equals the reference forward and backward") {
  KnownAttention known;
  for_each_variant(true, [&](const Variant& v) {
    if (test::on_gpu())
      for (const AttentionCase& c : kGpuCases) check_attention(v, c, known);
    else
      for (const AttentionCase& c : kCases) check_attention(v, c, known);
  });
}

TEST_CASE("many tiles give the same bits on any number of threads") {
  for (const DType dtype : product_dtypes()) {
    check_same_bits(kAnyThreads, [&](ExecutionContext& context) {
      const std::int64_t tokens = test::on_gpu() ? 200 : 1500;
      AttentionTensors x = random_attention(context, dtype, {1, tokens, 4, 2, 16, 0});
      x.run(context, {.scale = 0.2f});
      Values all = values_of(x.out);
      for (const Tensor* more : {&x.lse, &x.dq, &x.dk, &x.dv}) {
        const Values values = values_of(*more);
        all.insert(all.end(), values.begin(), values.end());
      }
      return all;
    });
  }
}

}  // namespace sortie::trainer
