// Sequences that are cut into many tiles of keys.
#include <algorithm>
#include <map>

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
// Lengths at, below and above whole tiles; grouped heads; values of another width; windows longer
// than a tile that begin anywhere; documents that leave tiles empty.
constexpr Case kCases[] = {
    {{1, 1025, 2, 1, 8, 0}, 0, 0, 0.0f},    {{1, 1536, 1, 1, 24, 16}, 0, 0, 0.0f},
    {{1, 1300, 1, 1, 8, 0}, 1100, 0, 0.0f}, {{1, 2100, 1, 1, 8, 0}, 1027, 0, 0.0f},
    {{2, 1100, 1, 1, 8, 0}, 0, 400, 0.0f},  {{1, 1100, 2, 2, 8, 12}, 1050, 700, 0.25f},
    {{1, 1600, 1, 1, 8, 0}, 0, 1030, 0.0f},
};

std::int64_t start_of(const Case& c, std::int64_t b, std::int64_t t) {
  if (c.document == 0) return 0;
  return std::max<std::int64_t>(0, (t + b) / c.document * c.document - b);
}

struct Tensors {
  Tensor q, k, v, dout, out, lse, dq, dk, dv;
};
Tensors make_tensors(ExecutionContext& context, DType dtype, const HeadShape& s, const Values& q,
                     const Values& k, const Values& v, const Values& dout) {
  const std::int64_t width = s.value_dims != 0 ? s.value_dims : s.dims;
  const Shape queries{s.batch, s.tokens, s.heads, s.dims},
      keys{s.batch, s.tokens, s.key_heads, s.dims}, values{s.batch, s.tokens, s.key_heads, width},
      results{s.batch, s.tokens, s.heads, width};
  return {make_tensor(context, dtype, queries, q),
          make_tensor(context, dtype, keys, k),
          make_tensor(context, dtype, values, v),
          make_tensor(context, dtype, results, dout),
          make_tensor(context, dtype, results, {}),
          context.empty(DType::f32, {s.batch, s.heads, s.tokens}),
          make_tensor(context, dtype, queries, {}),
          make_tensor(context, dtype, keys, {}),
          make_tensor(context, dtype, values, {})};
}
Tensors random_tensors(ExecutionContext& context, DType dtype, const HeadShape& s) {
  const std::int64_t width = s.value_dims != 0 ? s.value_dims : s.dims;
  const std::int64_t rows = s.batch * s.tokens;
  return make_tensors(context, dtype, s, random_values(dtype, 1, rows * s.heads * s.dims, 2.0),
                      random_values(dtype, 2, rows * s.key_heads * s.dims, 2.0),
                      random_values(dtype, 3, rows * s.key_heads * width),
                      random_values(dtype, 4, rows * s.heads * width));
}
void run(ExecutionContext& context, Tensors& x, const ops::AttentionMask& mask) {
  ops::attention_forward(context, x.q, x.k, x.v, mask, x.out, x.lse);
  ops::attention_backward(context, x.q, x.k, x.v, x.out, x.lse, x.dout, mask, x.dq, x.dk, x.dv);
}

}  // namespace

TEST_CASE("attention over many tiles equals the reference forward and backward") {
  struct Expected {
    reference::AttentionOut out;
    reference::AttentionGradients gradients;
  };
  std::map<std::pair<const Case*, DType>, Expected> known;  // the same for every instruction set
  for_each_variant(true, [&](const Variant& v) {
    for (const Case& c : kCases) {
      const HeadShape& s = c.shape;
      CAPTURE(s.tokens);
      CAPTURE(c.window);
      CAPTURE(c.document);
      Tensors x = random_tensors(v.context, v.dtype, s);
      ops::AttentionMask mask{.scale = 0.3f, .window = c.window};
      if (c.document > 0) {
        mask.document_start = v.context.empty(DType::i32, {s.batch, s.tokens});
        for (std::int64_t i = 0; i < s.batch * s.tokens; ++i)
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
      const Values q = values_of(x.q), k = values_of(x.k), value = values_of(x.v);
      if (!known.contains({&c, v.dtype}))
        known[{&c, v.dtype}] = {
            reference::attention(q, k, value, s, 0.3, expected_mask),
            reference::attention_backward(q, k, value, values_of(x.dout), s, 0.3, expected_mask)};
      const auto& [expected, g] = known[{&c, v.dtype}];
      run(v.context, x, mask);
      CHECK(relative_error(values_of(x.out), expected.out) <= v.tolerance);
      CHECK(relative_error(values_of(x.lse), expected.lse) <= 1e-5);
      CHECK(relative_error(values_of(x.dq), g.dq) <= 2 * v.tolerance);
      CHECK(relative_error(values_of(x.dk), g.dk) <= 2 * v.tolerance);
      CHECK(relative_error(values_of(x.dv), g.dv) <= 2 * v.tolerance);
    }
  });
}

TEST_CASE("many tiles give the same bits on any number of threads") {
  for (const DType dtype : product_dtypes()) {
    check_same_bits(kAnyThreads, [&](ExecutionContext& context) {
      Tensors x = random_tensors(context, dtype, {1, 1500, 4, 2, 16, 0});
      run(context, x, {.scale = 0.2f});
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
