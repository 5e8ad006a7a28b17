// Windows, documents, dropout and value heads of another width against the f64 reference.
#include <algorithm>

#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/reference.h"
#include "trainer/ops/attention.h"

namespace sortie::trainer {
namespace {

using reference::HeadShape;

struct Case {
  HeadShape shape;
  std::int64_t window;
  std::int64_t document;  // length of a document, 0 = one; the second sample's are shifted by one
  float dropout;
};
// Windows below, at and above a row block and the whole length; one token; one key head.
constexpr Case kCases[] = {
    {{1, 1, 1, 1, 8, 0}, 4, 0, 0.0f},     {{2, 9, 2, 1, 16, 0}, 4, 0, 0.0f},
    {{1, 130, 2, 2, 24, 0}, 64, 0, 0.0f}, {{1, 150, 2, 1, 56, 0}, 70, 0, 0.0f},
    {{2, 20, 4, 2, 8, 0}, 256, 0, 0.0f},  {{2, 140, 2, 2, 8, 0}, 1, 0, 0.0f},
    {{2, 75, 3, 1, 24, 16}, 0, 0, 0.0f},  {{1, 10, 2, 2, 8, 12}, 3, 0, 0.0f},
    {{2, 77, 2, 1, 16, 0}, 0, 10, 0.0f},  {{2, 77, 2, 1, 16, 0}, 7, 30, 0.0f},
    {{2, 70, 4, 2, 16, 8}, 0, 0, 0.3f},   {{2, 90, 2, 1, 8, 0}, 50, 33, 0.5f},
};

std::int64_t start_of(const Case& c, std::int64_t b, std::int64_t t) {
  if (c.document == 0) return 0;
  const std::int64_t first = (t + b) / c.document * c.document - b;
  return std::max<std::int64_t>(0, first);
}

}  // namespace

TEST_CASE("masked attention equals the reference forward and backward") {
  for_each_variant(true, [](const Variant& v) {
    for (const Case& c : kCases) {
      const HeadShape& s = c.shape;
      CAPTURE(s.tokens);
      CAPTURE(c.window);
      CAPTURE(c.document);
      const std::int64_t width = s.value_dims != 0 ? s.value_dims : s.dims;
      const std::int64_t rows = s.batch * s.tokens;
      const Values q = random_values(v.dtype, 1, rows * s.heads * s.dims, 2.0);
      const Values k = random_values(v.dtype, 2, rows * s.key_heads * s.dims, 2.0);
      const Values x = random_values(v.dtype, 3, rows * s.key_heads * width);
      const Values dout = random_values(v.dtype, 4, rows * s.heads * width);

      ops::AttentionMask mask{.scale = 0.3f, .window = c.window};
      if (c.document > 0) {
        mask.document_start = v.context.empty(DType::i32, {s.batch, s.tokens});
        for (std::int64_t i = 0; i < rows; ++i)
          mask.document_start.data<std::int32_t>()[i] =
              static_cast<std::int32_t>(start_of(c, i / s.tokens, i % s.tokens));
      }
      reference::Mask expected_mask;
      expected_mask.sees = [&](std::int64_t b, std::int64_t i, std::int64_t j) {
        return (c.window == 0 || i - j < c.window) && j >= start_of(c, b, i);
      };
      Values factors;
      if (c.dropout > 0.0f) {
        mask.dropout = {c.dropout, 17, 5};
        const Shape all{s.batch, s.heads * s.tokens * s.tokens};
        Tensor kept = make_tensor(v.context, DType::f32, all,
                                  Values(static_cast<std::size_t>(all.elements()), 1.0));
        ops::dropout(v.context, mask.dropout, s.batch, kept, kept);
        factors = values_of(kept);
        expected_mask.factor = [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
          return factors[static_cast<std::size_t>(((b * s.heads + h) * s.tokens + i) * s.tokens +
                                                  j)];
        };
      }
      const auto expected = reference::attention(q, k, x, s, 0.3, expected_mask);
      const auto g = reference::attention_backward(q, k, x, dout, s, 0.3, expected_mask);

      const Shape queries{s.batch, s.tokens, s.heads, s.dims},
          keys{s.batch, s.tokens, s.key_heads, s.dims},
          values{s.batch, s.tokens, s.key_heads, width}, results{s.batch, s.tokens, s.heads, width};
      const Tensor tq = make_tensor(v.context, v.dtype, queries, q),
                   tk = make_tensor(v.context, v.dtype, keys, k),
                   tv = make_tensor(v.context, v.dtype, values, x);
      Tensor out = make_tensor(v.context, v.dtype, results, {});
      Tensor lse = v.context.empty(DType::f32, {s.batch, s.heads, s.tokens});
      ops::attention_forward(v.context, tq, tk, tv, mask, out, lse);
      Tensor dq = make_tensor(v.context, v.dtype, queries, {}),
             dk = make_tensor(v.context, v.dtype, keys, {}),
             dv = make_tensor(v.context, v.dtype, values, {});
      ops::attention_backward(v.context, tq, tk, tv, out, lse,
                              make_tensor(v.context, v.dtype, results, dout), mask, dq, dk, dv);
      CHECK(relative_error(values_of(out), expected.out) <= v.tolerance);
      CHECK(relative_error(values_of(lse), expected.lse) <= 1e-5);
      CHECK(relative_error(values_of(dv), g.dv) <= 2 * v.tolerance);
      if (s.tokens > 1 && c.window != 1) {  // else there is one key, and no slope
        CHECK(relative_error(values_of(dq), g.dq) <= 2 * v.tolerance);
        CHECK(relative_error(values_of(dk), g.dk) <= 2 * v.tolerance);
      }
    }
  });
}

TEST_CASE("RoPE turns by the given positions") {
  for_each_variant(false, [](const Variant& v) {
    const HeadShape s{2, 6, 2, 1, 8, 0};
    const Values x = random_values(v.dtype, 1, s.batch * s.tokens * s.heads * s.dims);
    const Shape shape{s.batch, s.tokens, s.heads, s.dims};
    const auto table = ops::make_rope_table(v.context, 8, ops::rope_frequencies(4, 100.0));
    Tensor plain = make_tensor(v.context, v.dtype, shape, x);
    ops::rope(v.context, plain, table, {}, false);
    // Positions that start again: each token is turned as the first ones are.
    Tensor positions = v.context.empty(DType::i32, {s.batch, s.tokens});
    for (int i = 0; i < 12; ++i) positions.data<std::int32_t>()[i] = i % 3;
    Tensor reset = make_tensor(v.context, v.dtype, shape, x);
    ops::rope(v.context, reset, table, positions, false);
    const Values a = values_of(plain), b = values_of(reset);
    CHECK(std::equal(a.begin(), a.begin() + 3 * 16, b.begin()));
    CHECK(a != b);
    Tensor again = make_tensor(v.context, v.dtype, shape, {});
    for_each_element(again, [&](std::size_t i, std::int64_t offset) {
      // Token t of the first half holds what token 3 + t held.
      const std::size_t t = i / 16 % 6;
      set_element(again.raw(), v.dtype, offset, t < 3 ? x[i + 3 * 16] : 0.0);
    });
    ops::rope(v.context, again, table, {}, false);
    const Values moved = values_of(again);
    CHECK(std::equal(moved.begin(), moved.begin() + 3 * 16, b.begin() + 3 * 16));
  });
}

TEST_CASE("dropout keeps the share it should and depends on key, sample and place alone") {
  for_each_variant(false, [](const Variant& v) {
    const std::int64_t samples = 3, count = 40000;
    const Tensor ones = make_tensor(v.context, v.dtype, {samples, count},
                                    Values(static_cast<std::size_t>(samples * count), 1.0));
    Tensor y = v.context.empty(v.dtype, {samples, count});
    const ops::Dropout drop{0.25f, 99, 7};
    ops::dropout(v.context, drop, samples, ones, y);
    const Values all = values_of(y);
    for (std::int64_t b = 0; b < samples; ++b) {
      double kept = 0, neighbours = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const double value = all[static_cast<std::size_t>(b * count + i)];
        CHECK((value == 0.0 || std::abs(value - 4.0 / 3.0) <= v.tolerance));
        kept += value > 0;
        if (i > 0) neighbours += value > 0 && all[static_cast<std::size_t>(b * count + i - 1)] > 0;
      }
      // Five standard deviations.
      const auto n = static_cast<double>(count);
      CHECK(std::abs(kept / n - 0.75) <= 5 * std::sqrt(0.75 * 0.25 / n));
      CHECK(std::abs(neighbours / n - 0.5625) <= 5 * std::sqrt(0.5625 * 0.4375 * 2 / n));
    }
    // Sample 2 of the batch from 7 on is sample 0 of a batch from 9 on.
    Tensor one = v.context.empty(v.dtype, {1, count});
    ops::dropout(v.context, {0.25f, 99, 9}, 1, ones.slice(0, 2, 1), one);
    CHECK(values_of(one) == Values(all.begin() + 2 * count, all.end()));
    ops::dropout(v.context, {0.25f, 98, 9}, 1, ones.slice(0, 2, 1), one);
    CHECK(values_of(one) != Values(all.begin() + 2 * count, all.end()));
  });
}

}  // namespace sortie::trainer
