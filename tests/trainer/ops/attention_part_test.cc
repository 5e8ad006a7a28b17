// Compares attention over parts of a sequence, which ranks that share sequences add up, with
// attention over the whole sequence in one call.
#include "tests/trainer/ops/attention_case.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"

namespace sortie::trainer {
namespace {

struct PartCase {
  AttentionCase attention;
  std::int64_t chunk;  // tokens of a part; the last one may have fewer
};

// Parts shorter and longer than a tile; windows that hide parts; documents; values of a different
// width.
constexpr PartCase kPartCases[] = {
    {{{2, 24, 2, 1, 8, 0}, 0, 0, 0.0f}, 6},         {{{1, 40, 2, 2, 8, 12}, 7, 0, 0.25f}, 10},
    {{{2, 30, 4, 2, 8, 0}, 0, 9, 0.25f}, 10},       {{{1, 1200, 1, 1, 8, 0}, 0, 0, 0.0f}, 600},
    {{{1, 1300, 2, 1, 8, 0}, 500, 700, 0.1f}, 325},
};

// The same with tiles of 128, 64 and 32 rows: parts that begin within a tile.
constexpr PartCase kGpuPartCases[] = {
    {{{2, 24, 2, 1, 8, 0}, 0, 0, 0.0f}, 6},
    {{{1, 40, 2, 2, 8, 12}, 7, 0, 0.25f}, 10},
    {{{1, 210, 2, 1, 8, 0}, 90, 120, 0.1f}, 75},
};

Tensor f32_zeros(ExecutionContext& context, const Shape& shape) {
  return context.zeros(DType::f32, shape);
}

/// Runs every pair of parts, with keys from the last part to the first.
AttentionTensors run_in_parts(ExecutionContext& context, const AttentionTensors& whole,
                              const ops::AttentionMask& mask, std::int64_t chunk) {
  const std::int64_t tokens = whole.q.size(1);
  AttentionTensors x = whole;
  x.out = f32_zeros(context, whole.out.shape());
  x.lse = context.empty(DType::f32, whole.lse.shape());
  ops::fill(context, -std::numeric_limits<double>::infinity(), x.lse);
  x.dq = f32_zeros(context, whole.dq.shape());
  x.dk = f32_zeros(context, whole.dk.shape());
  x.dv = f32_zeros(context, whole.dv.shape());
  for (std::int64_t query = 0; query < tokens; query += chunk) {
    const std::int64_t rows = std::min(chunk, tokens - query);
    const auto of = [&](const Tensor& t) { return t.slice(1, query, rows); };
    Tensor out = of(x.out), lse = x.lse.slice(2, query, rows);
    ops::AttentionMask part = mask;
    if (mask.document_start.defined())
      part.document_start = mask.document_start.slice(1, query, rows);
    const auto for_each_key = [&](const auto& body) {
      for (std::int64_t key = (tokens - 1) / chunk * chunk; key >= 0; key -= chunk) {
        const std::int64_t keys = std::min(chunk, tokens - key);
        part.part = {.first_query = query, .first_key = key, .tokens = tokens};
        body(key, keys);
      }
    };
    for_each_key([&](std::int64_t key, std::int64_t keys) {
      ops::attention_forward(context, of(x.q), x.k.slice(1, key, keys), x.v.slice(1, key, keys),
                             part, out, lse);
    });
    // The backward pass takes the output in the type of the inputs.
    Tensor dense = context.empty(DType::f32, out.shape()), result = dense;
    ops::copy(context, out, dense);
    if (x.q.dtype() != DType::f32) {
      result = context.empty(x.q.dtype(), out.shape());
      ops::convert(context, dense, result);
    }
    for_each_key([&](std::int64_t key, std::int64_t keys) {
      Tensor dq = of(x.dq), dk = x.dk.slice(1, key, keys), dv = x.dv.slice(1, key, keys);
      ops::attention_backward(context, of(x.q), x.k.slice(1, key, keys), x.v.slice(1, key, keys),
                              result, lse, of(x.dout), part, dq, dk, dv);
    });
  }
  return x;
}

/// Compares the sum over all parts with one call.
void check_in_parts(ExecutionContext& context, DType dtype, const PartCase& part) {
  const AttentionCase& c = part.attention;
  CAPTURE(std::string(dtype_name(dtype)));
  CAPTURE(context.threads());
  CAPTURE(c.shape.tokens);
  CAPTURE(c.window);
  AttentionTensors whole = random_attention(context, dtype, c.shape);
  ops::AttentionMask mask{.scale = 0.3f, .window = c.window};
  if (c.dropout > 0.0f) mask.dropout = {c.dropout, 17, 5};
  if (c.document > 0) mask.document_start = document_starts(context, c);
  whole.run(context, mask);
  const AttentionTensors parts = run_in_parts(context, whole, mask, part.chunk);
  const double tolerance = dtype == DType::bf16 ? 0x1p-6 : 2e-5;  // both are rounded
  CHECK(relative_error(values_of(parts.out), values_of(whole.out)) <= tolerance);
  CHECK(relative_error(values_of(parts.lse), values_of(whole.lse)) <= 1e-5);
  CHECK(relative_error(values_of(parts.dq), values_of(whole.dq)) <= tolerance);
  CHECK(relative_error(values_of(parts.dk), values_of(whole.dk)) <= tolerance);
  CHECK(relative_error(values_of(parts.dv), values_of(whole.dv)) <= tolerance);
}

}  // namespace

TEST_CASE("attention over parts of keys adds up to that over all of them") {
  for (const DType dtype : product_dtypes())
    for (const int threads : {1, 2}) {
      if (test::on_gpu() && threads > 1) continue;
      ExecutionContext context(threads, test::device());
      if (test::on_gpu())
        for (const PartCase& part : kGpuPartCases) check_in_parts(context, dtype, part);
      else
        for (const PartCase& part : kPartCases) check_in_parts(context, dtype, part);
    }
}

TEST_CASE("keys that no query sees change nothing") {
  ExecutionContext context(1, test::device());
  AttentionTensors x = random_attention(context, DType::f32, {1, 8, 2, 2, 8, 0});
  const Values before = values_of(
      make_tensor(context, DType::f32, x.out.shape(), random_values(DType::f32, 9, 128, 1.0)));
  Tensor out = make_tensor(context, DType::f32, x.out.shape(), before);
  Tensor lse = make_tensor(context, DType::f32, x.lse.shape(), Values(16, 0.5));
  ops::AttentionMask mask{.scale = 0.3f, .window = 4};
  mask.part = {.first_query = 16, .first_key = 0, .tokens = 24};
  ops::attention_forward(context, x.q, x.k, x.v, mask, out, lse);
  CHECK(values_of(out) == before);
  CHECK(values_of(lse) == Values(16, 0.5));
  Tensor nothing = context.empty(DType::f32, x.lse.shape());
  ops::fill(context, -std::numeric_limits<double>::infinity(), nothing);
  Tensor zero = context.zeros(DType::f32, x.out.shape());
  ops::attention_forward(context, x.q, x.k, x.v, mask, zero, nothing);
  CHECK(values_of(zero) == Values(128, 0.0));
  CHECK(values_of(nothing) == Values(16, -std::numeric_limits<double>::infinity()));
}

}  // namespace sortie::trainer
