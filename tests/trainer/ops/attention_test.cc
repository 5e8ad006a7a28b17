// Compares attention and RoPE on views of one QKV buffer with the f64 reference.
#include "trainer/ops/attention.h"

#include <algorithm>

#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/reference.h"

namespace sortie::trainer {
namespace {

using reference::HeadShape;

// One token, odd lengths, more than one and exactly two row blocks, grouped and single key heads,
// the head sizes 56 and 64, and an odd head size.
constexpr HeadShape kShapes[] = {{1, 1, 1, 1, 8},    {2, 5, 4, 2, 16},   {1, 67, 3, 1, 56},
                                 {1, 128, 2, 2, 64}, {2, 130, 4, 1, 24}, {1, 70, 2, 1, 7}};

struct Views {
  Tensor buffer, q, k, v;
};
/// Returns a buffer [B, T, (H + 2 KV) D] and its three parts with these values. A part without
/// values is NaN.
Views make_views(ExecutionContext& context, DType dtype, const HeadShape& s, const Values& q,
                 const Values& k, const Values& v) {
  const std::int64_t width = (s.heads + 2 * s.key_heads) * s.dims;
  Values all(static_cast<std::size_t>(s.batch * s.tokens * width), kNaN);
  std::int64_t begin = 0;
  const auto place = [&](std::int64_t heads, const Values& values) {
    const std::int64_t columns = heads * s.dims;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      all[static_cast<std::size_t>(at / columns * width + begin + at % columns)] = values[i];
    }
    begin += columns;
  };
  place(s.heads, q);
  place(s.key_heads, k);
  place(s.key_heads, v);
  Views views;
  views.buffer = make_tensor(context, dtype, {s.batch, s.tokens, width}, all);
  begin = 0;
  const auto part = [&](std::int64_t heads) {
    begin += heads * s.dims;
    return views.buffer.slice(2, begin - heads * s.dims, heads * s.dims)
        .view({s.batch, s.tokens, heads, s.dims});
  };
  views.q = part(s.heads);
  views.k = part(s.key_heads);
  views.v = part(s.key_heads);
  return views;
}

struct Inputs {
  Values q, k, v, dout;
};
Inputs make_inputs(DType dtype, const HeadShape& s) {
  const std::int64_t rows = s.batch * s.tokens * s.dims;
  return {random_values(dtype, 1, rows * s.heads, 2.0),
          random_values(dtype, 2, rows * s.key_heads, 2.0),
          random_values(dtype, 3, rows * s.key_heads), random_values(dtype, 4, rows * s.heads)};
}

struct Run {
  Values out, lse, dq, dk, dv;
};
Run run_attention(ExecutionContext& context, DType dtype, const HeadShape& s, const Inputs& in,
                  float scale) {
  const Views x = make_views(context, dtype, s, in.q, in.k, in.v);
  const Shape shape{s.batch, s.tokens, s.heads, s.dims};
  Tensor out = context.empty(dtype, shape);
  Tensor lse = context.empty(DType::f32, {s.batch, s.heads, s.tokens});
  ops::attention_forward(context, x.q, x.k, x.v, {.scale = scale}, out, lse);
  Views d = make_views(context, dtype, s, {}, {}, {});
  ops::attention_backward(context, x.q, x.k, x.v, out, lse,
                          make_tensor(context, dtype, shape, in.dout), {.scale = scale}, d.q, d.k,
                          d.v);
  return {values_of(out), values_of(lse), values_of(d.q), values_of(d.k), values_of(d.v)};
}

}  // namespace

TEST_CASE("attention equals the reference forward and backward") {
  for_each_variant(true, [](const Variant& v) {
    for (const HeadShape& s : kShapes) {
      CAPTURE(s.tokens);
      CAPTURE(s.heads);
      CAPTURE(s.dims);
      const Inputs in = make_inputs(v.dtype, s);
      const double scale = 1.0 / std::sqrt(static_cast<double>(s.dims));
      const auto expected = reference::attention(in.q, in.k, in.v, s, scale);
      const auto g = reference::attention_backward(in.q, in.k, in.v, in.dout, s, scale);
      const Run run = run_attention(v.context, v.dtype, s, in, static_cast<float>(scale));
      CHECK(relative_error(run.out, expected.out) <= v.tolerance);
      CHECK(relative_error(run.lse, expected.lse) <= 1e-5);
      // Zero for one token. Otherwise P, dP and dS are rounded, too, hence twice the tolerance.
      if (s.tokens > 1) {
        CHECK(relative_error(run.dq, g.dq) <= 2 * v.tolerance);
        CHECK(relative_error(run.dk, g.dk) <= 2 * v.tolerance);
      }
      CHECK(relative_error(run.dv, g.dv) <= 2 * v.tolerance);
    }
  });
}

TEST_CASE("a token sees no later token") {
  for_each_variant(true, [](const Variant& v) {
    const HeadShape s{1, 100, 2, 2, 16};
    Inputs in = make_inputs(v.dtype, s);
    const Run first = run_attention(v.context, v.dtype, s, in, 0.25f);
    for (std::size_t i = 70 * 32; i < in.k.size(); ++i) {
      in.k[i] = 3.0;
      in.v[i] = -5.0;
    }
    const Run second = run_attention(v.context, v.dtype, s, in, 0.25f);
    CHECK(Values(first.out.begin(), first.out.begin() + 70 * 32) ==
          Values(second.out.begin(), second.out.begin() + 70 * 32));
    CHECK(first.out != second.out);
  });
}

TEST_CASE("scores far apart do not overflow") {
  for_each_variant(true, [](const Variant& v) {
    const HeadShape s{1, 3, 1, 1, 2};
    const Inputs in{
        {100, 0, 100, 0, 100, 0}, {100, 0, -100, 0, 90, 0}, {1, 2, 3, 4, 5, 6}, {1, 1, 1, 1, 1, 1}};
    const Run run = run_attention(v.context, v.dtype, s, in, 1.0f);
    CHECK(run.out == Values{1, 2, 1, 2, 1, 2});
    CHECK(run.lse == Values{10000, 10000, 10000});
    CHECK(all_finite(run.dq));
  });
}

TEST_CASE("a NaN in q, k or v makes the outputs that see it non-finite") {
  for_each_variant(true, [](const Variant& v) {
    const HeadShape s{1, 80, 1, 1, 16};
    for (int which = 0; which < 3; ++which) {
      CAPTURE(which);
      Inputs in = make_inputs(v.dtype, s);
      (which == 0 ? in.q : which == 1 ? in.k : in.v)[70 * 16 + 3] = kNaN;
      const Run run = run_attention(v.context, v.dtype, s, in, 0.25f);
      CHECK_FALSE(all_finite(Values(run.out.begin() + 70 * 16, run.out.begin() + 71 * 16)));
      CHECK_FALSE(all_finite(run.dq));
    }
  });
}

TEST_CASE("attention has the same bits on any number of threads") {
  for (const DType dtype : product_dtypes()) {
    check_same_bits(kAnyThreads, [&](ExecutionContext& context) {
      const HeadShape s{test::on_gpu() ? 1 : 2, test::on_gpu() ? 70 : 150, 6, 2, 32};
      const Run run = run_attention(context, dtype, s, make_inputs(dtype, s), 0.2f);
      Values all = run.out;
      for (const Values* more : {&run.lse, &run.dq, &run.dk, &run.dv})
        all.insert(all.end(), more->begin(), more->end());
      return all;
    });
  }
}

TEST_CASE("RoPE equals the reference, leaves the other dimensions alone, and turns back") {
  for_each_variant(false, [](const Variant& v) {
    for (const std::int64_t rotary : {2, 14, 56}) {
      CAPTURE(rotary);
      const HeadShape s{2, 37, 3, 1, 56};
      const Inputs in = make_inputs(v.dtype, s);
      Views x = make_views(v.context, v.dtype, s, in.q, in.k, in.v);
      const auto table =
          ops::make_rope_table(v.context, 40, ops::rope_frequencies(rotary, 10000.0));
      ops::rope(v.context, x.q, table, {}, false);
      CHECK(relative_error(values_of(x.q), reference::rope(in.q, s, rotary, 10000.0, 1.0)) <=
            v.tolerance);
      CHECK(values_of(x.k) == in.k);
      ops::rope(v.context, x.q, table, {}, true);
      CHECK(relative_error(values_of(x.q), in.q) <= v.tolerance);
    }
  });
}

}  // namespace sortie::trainer
