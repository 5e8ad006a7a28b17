// Checks of attention and RoPE, and the RoPE table.
#include "trainer/ops/attention.h"

#include <algorithm>
#include <cmath>

#include "trainer/ops/copy.h"
#include "trainer/ops/dispatch.h"

namespace sortie::trainer::ops {
namespace {

void check_heads(const Tensor& x, DType dtype, const Shape& shape, const char* name) {
  SORTIE_CHECK(x.dtype() == dtype && x.shape() == shape && x.stride(-1) == 1,
               "{} is {} {}, expected {} {}", name, dtype_name(x.dtype()), x.shape().to_string(),
               dtype_name(dtype), shape.to_string());
}

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask,
                  const Tensor& lse) {
  SORTIE_CHECK(q.shape().dims() == 4 && k.shape().dims() == 4 && q.dtype() != DType::i32,
               "q {} {}, k {}", dtype_name(q.dtype()), q.shape().to_string(),
               k.shape().to_string());
  const std::int64_t keys = mask.part ? k.size(1) : q.size(1);
  check_heads(k, q.dtype(), {q.size(0), keys, k.size(2), q.size(3)}, "k");
  check_heads(v, q.dtype(), {k.size(0), keys, k.size(2), v.size(-1)}, "v");
  SORTIE_CHECK(k.size(2) > 0 && q.size(2) % k.size(2) == 0, "{} heads read {} key heads", q.size(2),
               k.size(2));
  SORTIE_CHECK(mask.scale > 0.0f && mask.window >= 0, "scale {}, window {}", mask.scale,
               mask.window);
  const Tensor& start = mask.document_start;
  SORTIE_CHECK(!start.defined() || (start.dtype() == DType::i32 && start.stride(-1) == 1 &&
                                    start.shape() == Shape({q.size(0), q.size(1)})),
               "document starts {} {} for q {}", dtype_name(start.dtype()),
               start.shape().to_string(), q.shape().to_string());
  SORTIE_CHECK(mask.dropout.probability >= 0.0f && mask.dropout.probability < 1.0f &&
                   is_sample_number(mask.dropout),
               "dropout {}", mask.dropout.probability);
  SORTIE_CHECK(lse.dtype() == DType::f32 && lse.stride(-1) == 1 &&
                   lse.shape() == Shape({q.size(0), q.size(2), q.size(1)}),
               "lse {} for q {}", lse.shape().to_string(), q.shape().to_string());
  if (!mask.part) return;
  const AttentionPart& part = *mask.part;
  SORTIE_CHECK(part.first_query >= 0 && part.first_key >= 0 &&
                   part.first_query + q.size(1) <= part.tokens &&
                   part.first_key + keys <= part.tokens,
               "{} queries from {} and {} keys from {} of {} tokens", q.size(1), part.first_query,
               keys, part.first_key, part.tokens);
}

/// Dtype of results: partial ones are accumulated in f32.
DType result_type(const Tensor& q, const AttentionMask& mask) {
  return mask.part ? DType::f32 : q.dtype();
}

/// Multiply-adds per dimension of one product of the queries with the keys that they see, over all
/// heads. Assumes one document.
std::int64_t seen_keys(const Tensor& q, const Tensor& k, const AttentionMask& mask) {
  const AttentionPart part = mask.part.value_or(AttentionPart{});
  std::int64_t seen = 0;
  for (std::int64_t t = part.first_query; t < part.first_query + q.size(1); ++t) {
    const std::int64_t first = mask.window > 0 ? t - mask.window + 1 : 0;
    const std::int64_t last = std::min(t + 1, part.first_key + k.size(1));
    seen += std::max<std::int64_t>(0, last - std::max(first, part.first_key));
  }
  return seen * q.size(0) * q.size(2);
}

}  // namespace

std::vector<double> rope_frequencies(std::int64_t rotary_dims, double base) {
  SORTIE_CHECK(rotary_dims % 2 == 0 && rotary_dims >= 0, "{} rotary dimensions", rotary_dims);
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < rotary_dims; i += 2)
    frequencies.push_back(
        std::pow(base, -static_cast<double>(i) / static_cast<double>(rotary_dims)));
  return frequencies;
}

RopeTable make_rope_table(ExecutionContext& context, std::int64_t positions,
                          std::span<const double> frequencies, double factor) {
  const auto half = static_cast<std::int64_t>(frequencies.size());
  RopeTable table{context.empty(DType::f32, {positions, half}),
                  context.empty(DType::f32, {positions, half}), 2 * half};
  if (context.device().kind == DeviceKind::meta) return table;  // the sines of 8B take a while
  std::vector<float> cos(static_cast<std::size_t>(positions * half)), sin(cos.size());
  for (std::int64_t i = 0; i < half; ++i) {
    for (std::int64_t t = 0; t < positions; ++t) {
      const double angle = static_cast<double>(t) * frequencies[static_cast<std::size_t>(i)];
      const auto at = static_cast<std::size_t>(t * half + i);
      cos[at] = static_cast<float>(std::cos(angle) * factor);
      sin[at] = static_cast<float>(std::sin(angle) * factor);
    }
  }
  copy_from_host<float>(context, cos, table.cos);
  copy_from_host<float>(context, sin, table.sin);
  return table;
}

void rope(ExecutionContext& context, Tensor& x, const RopeTable& table, const Tensor& positions,
          bool inverse) {
  SORTIE_CHECK(x.shape().dims() == 4 && x.dtype() != DType::i32 && table.rotary_dims <= x.size(3) &&
                   (positions.defined() || x.size(1) <= table.cos.size(0)),
               "x {} {}, table of {} positions and {} dimensions", dtype_name(x.dtype()),
               x.shape().to_string(), table.cos.size(0), table.rotary_dims);
  SORTIE_CHECK(!positions.defined() || (positions.dtype() == DType::i32 && positions.dense() &&
                                        positions.shape() == Shape({x.size(0), x.size(1)})),
               "positions {} {} for x {}", dtype_name(positions.dtype()),
               positions.shape().to_string(), x.shape().to_string());
  if (x.elements() > 0 && table.rotary_dims > 0)
    dispatch<&Backend::rope>(context, x, table, positions, inverse);
}

void attention_forward(ExecutionContext& context, const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionMask& mask, Tensor& out, Tensor& lse) {
  check_inputs(q, k, v, mask, lse);
  const Shape result{q.size(0), q.size(1), q.size(2), v.size(3)};
  check_heads(out, result_type(q, mask), result, "out");
  if (q.elements() == 0) return;
  context.count_flop(2 * seen_keys(q, k, mask) * (q.size(3) + v.size(3)));
  dispatch<&Backend::attention_forward>(context, q, k, v, mask, out, lse);
}

void attention_backward(ExecutionContext& context, const Tensor& q, const Tensor& k,
                        const Tensor& v, const Tensor& out, const Tensor& lse, const Tensor& dout,
                        const AttentionMask& mask, Tensor& dq, Tensor& dk, Tensor& dv) {
  check_inputs(q, k, v, mask, lse);
  const Shape result{q.size(0), q.size(1), q.size(2), v.size(3)};
  check_heads(out, q.dtype(), result, "out");
  check_heads(dout, q.dtype(), result, "dout");
  check_heads(dq, result_type(q, mask), q.shape(), "dq");
  check_heads(dk, result_type(q, mask), k.shape(), "dk");
  check_heads(dv, result_type(q, mask), v.shape(), "dv");
  if (q.elements() == 0) return;
  // Twice the forward pass. That the kernels compute the scores once more is not counted.
  context.count_flop(4 * seen_keys(q, k, mask) * (q.size(3) + v.size(3)));
  dispatch<&Backend::attention_backward>(context, q, k, v, out, lse, dout, mask, dq, dk, dv);
}

}  // namespace sortie::trainer::ops
