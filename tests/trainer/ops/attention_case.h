// A case of masked attention: its tensors, its mask, and the comparison with the f64 reference.
#pragma once

#include <algorithm>
#include <map>

#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/reference.h"
#include "trainer/ops/attention.h"

namespace sortie::trainer {

struct AttentionCase {
  reference::HeadShape shape;
  std::int64_t window;    // keys that a query sees, its own included; 0: all up to its own
  std::int64_t document;  // length of a document, 0: one; those of sample b begin b tokens earlier
  float dropout;

  /// Returns where the document of token t of sample b begins.
  std::int64_t start_of(std::int64_t b, std::int64_t t) const {
    if (document == 0) return 0;
    return std::max<std::int64_t>(0, (t + b) / document * document - b);
  }
};

/// Returns start_of() of every token, as ops take it.
inline Tensor document_starts(ExecutionContext& context, const AttentionCase& c) {
  std::vector<std::int32_t> starts;
  for (std::int64_t b = 0; b < c.shape.batch; ++b)
    for (std::int64_t t = 0; t < c.shape.tokens; ++t)
      starts.push_back(static_cast<std::int32_t>(c.start_of(b, t)));
  return ops::tensor_from_host<std::int32_t>(context, starts, {c.shape.batch, c.shape.tokens});
}

struct AttentionTensors {
  Tensor q, k, v, dout, out, lse, dq, dk, dv;

  void run(ExecutionContext& context, const ops::AttentionMask& mask) {
    ops::attention_forward(context, q, k, v, mask, out, lse);
    ops::attention_backward(context, q, k, v, out, lse, dout, mask, dq, dk, dv);
  }
};

/// Returns random q, k, v and dout. The output and the gradients are NaN.
inline AttentionTensors random_attention(ExecutionContext& context, DType dtype,
                                         const reference::HeadShape& s) {
  const std::int64_t width = s.value_dims != 0 ? s.value_dims : s.dims;
  const std::int64_t rows = s.batch * s.tokens;
  const Shape queries{s.batch, s.tokens, s.heads, s.dims},
      keys{s.batch, s.tokens, s.key_heads, s.dims}, values{s.batch, s.tokens, s.key_heads, width},
      results{s.batch, s.tokens, s.heads, width};
  const auto random = [&](std::uint64_t seed, const Shape& shape, std::int64_t count,
                          double range) {
    return make_tensor(context, dtype, shape, random_values(dtype, seed, count, range));
  };
  return {random(1, queries, rows * s.heads * s.dims, 2.0),
          random(2, keys, rows * s.key_heads * s.dims, 2.0),
          random(3, values, rows * s.key_heads * width, 1.0),
          random(4, results, rows * s.heads * width, 1.0),
          make_tensor(context, dtype, results, {}),
          context.empty(DType::f32, {s.batch, s.heads, s.tokens}),
          make_tensor(context, dtype, queries, {}),
          make_tensor(context, dtype, keys, {}),
          make_tensor(context, dtype, values, {})};
}

struct AttentionExpected {
  reference::AttentionOut out;
  reference::AttentionGradients gradients;
};
/// Results of the reference, which is slow. They are the same for every instruction set and number
/// of threads.
using KnownAttention = std::map<std::pair<const AttentionCase*, DType>, AttentionExpected>;

/// Compares the forward and backward passes of `c` with the reference. `c` must outlive `known`.
inline void check_attention(const Variant& v, const AttentionCase& c, KnownAttention& known) {
  const reference::HeadShape& s = c.shape;
  CAPTURE(s.tokens);
  CAPTURE(c.window);
  CAPTURE(c.document);
  AttentionTensors x = random_attention(v.context, v.dtype, s);
  ops::AttentionMask mask{.scale = 0.3f, .window = c.window};
  if (c.document > 0) mask.document_start = document_starts(v.context, c);
  reference::Mask expected_mask;
  expected_mask.sees = [&](std::int64_t b, std::int64_t i, std::int64_t j) {
    return (c.window == 0 || i - j < c.window) && j >= c.start_of(b, i);
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
      return factors[static_cast<std::size_t>(((b * s.heads + h) * s.tokens + i) * s.tokens + j)];
    };
  }
  const Values q = values_of(x.q), k = values_of(x.k), value = values_of(x.v);
  if (!known.contains({&c, v.dtype}))
    known[{&c, v.dtype}] = {
        reference::attention(q, k, value, s, 0.3, expected_mask),
        reference::attention_backward(q, k, value, values_of(x.dout), s, 0.3, expected_mask)};
  const auto& [expected, g] = known[{&c, v.dtype}];
  x.run(v.context, mask);
  CHECK(relative_error(values_of(x.out), expected.out) <= v.tolerance);
  CHECK(relative_error(values_of(x.lse), expected.lse) <= 1e-5);
  CHECK(relative_error(values_of(x.dv), g.dv) <= 2 * v.tolerance);
  if (s.tokens == 1 || c.window == 1) return;  // one key: gradients are 0
  CHECK(relative_error(values_of(x.dq), g.dq) <= 2 * v.tolerance);
  CHECK(relative_error(values_of(x.dk), g.dk) <= 2 * v.tolerance);
}

}  // namespace sortie::trainer
