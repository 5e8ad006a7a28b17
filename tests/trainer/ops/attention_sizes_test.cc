// Tests of head sizes and lengths around the sizes of tiles, and of how query heads of a key head
// are distributed.
#include <algorithm>
#include <cmath>

#include "tests/trainer/ops/attention_case.h"

namespace sortie::trainer {
namespace {

// Heads of every width that kernels are made for, and heads that fill such a width only in part;
// values of a different width; lengths one token below, at and above tiles of 32, 64 and 128 rows.
constexpr AttentionCase kSizeCases[] = {
    {{1, 33, 2, 1, 32, 0}, 0, 0, 0.0f},    {{1, 63, 1, 1, 64, 0}, 0, 0, 0.0f},
    {{1, 64, 1, 1, 40, 64}, 0, 0, 0.0f},   {{1, 65, 1, 1, 96, 0}, 0, 0, 0.0f},
    {{1, 127, 1, 1, 16, 0}, 0, 0, 0.0f},   {{1, 128, 1, 1, 16, 0}, 0, 0, 0.0f},
    {{1, 129, 1, 1, 16, 0}, 60, 0, 0.0f},  {{1, 31, 2, 2, 128, 0}, 0, 0, 0.0f},
    {{1, 66, 1, 1, 120, 128}, 0, 0, 0.0f}, {{1, 40, 2, 1, 192, 128}, 0, 0, 0.0f},
    {{1, 67, 1, 1, 192, 0}, 0, 20, 0.2f},  {{1, 65, 2, 1, 256, 0}, 0, 0, 0.0f},
    {{1, 20, 1, 1, 250, 3}, 0, 0, 0.0f},
};

// Few and many key heads. The gradients of their query heads are summed by one block or by several.
constexpr AttentionCase kGroupCases[] = {
    {{1, 9, 12, 1, 8, 0}, 0, 0, 0.0f},
    {{29, 2, 12, 3, 8, 0}, 0, 0, 0.0f},
    {{86, 3, 3, 1, 8, 0}, 0, 2, 0.0f},
};

}  // namespace

TEST_CASE("attention takes any size of head and length") {
  KnownAttention known;
  for_each_variant(true, [&](const Variant& v) {
    for (const AttentionCase& c : kSizeCases) check_attention(v, c, known);
  });
}

TEST_CASE("attention sums gradients over the heads that read a key") {
  KnownAttention known;
  for_each_variant(true, [&](const Variant& v) {
    for (const AttentionCase& c : kGroupCases) check_attention(v, c, known);
  });
}

TEST_CASE("attention takes views that lie at odd places") {
  for_each_variant(true, [](const Variant& v) {
    // Every tensor is a slice whose rows begin after a gap.
    const std::int64_t tokens = 37, heads = 2, dims = 16;
    const Shape shape{1, tokens, heads, dims};
    const auto random = [&](std::uint64_t seed) {
      return random_values(v.dtype, seed, tokens * heads * dims);
    };
    const auto run = [&](std::int64_t gap) {
      const auto make = [&](const Values& values) {
        return make_tensor(v.context, v.dtype, shape, values, gap);
      };
      AttentionTensors x{
          make(random(1)), make(random(2)), make(random(3)),
          make(random(4)), make({}),        v.context.empty(DType::f32, {1, heads, tokens}),
          make({}),        make({}),        make({})};
      x.run(v.context, {.scale = 0.25f});
      Values all = values_of(x.out);
      for (const Tensor* more : {&x.lse, &x.dq, &x.dk, &x.dv}) {
        const Values values = values_of(*more);
        all.insert(all.end(), values.begin(), values.end());
      }
      return all;
    };
    const Values aligned = run(0);
    for (const std::int64_t gap : {1, 3, 4, 8}) {
      CAPTURE(gap);
      CHECK(relative_error(run(gap), aligned) <= 1e-6);
    }
  });
}

TEST_CASE("attention of large scores") {
  // f32 has scores with a relative error of 6e-8. The absolute error of a score is the relative
  // error of e^score, and so of probabilities.
  for_each_variant(true, [](const Variant& v) {
    const double tolerance = std::max(v.tolerance, 1e-3);
    const reference::HeadShape s{1, 70, 2, 1, 64, 0};
    for (const double size : {1e2, 1e4, 1e6}) {
      CAPTURE(size);
      AttentionTensors x = random_attention(v.context, v.dtype, s);
      Values large = values_of(x.q);
      for (double& value : large) value *= size;
      x.q = make_tensor(v.context, v.dtype, {1, 70, 2, 64}, large);
      const Values q = values_of(x.q), k = values_of(x.k), value = values_of(x.v);
      reference::Mask mask;
      mask.sees = [](std::int64_t, std::int64_t i, std::int64_t j) { return j <= i; };
      const reference::AttentionOut expected = reference::attention(q, k, value, s, 0.3, mask);
      x.run(v.context, {.scale = 0.3f});
      CHECK(relative_error(values_of(x.out), expected.out) <= tolerance);
      CHECK(relative_error(values_of(x.lse), expected.lse) <= 1e-5);
      for (const Tensor* gradient : {&x.dq, &x.dk, &x.dv})
        for (const double element : values_of(*gradient)) CHECK(std::isfinite(element));
    }
  });
}

}  // namespace sortie::trainer
