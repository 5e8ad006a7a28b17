// Checks of attention and RoPE, and the RoPE table.
#include "trainer/ops/attention.h"

#include <cmath>

#include "trainer/ops/attention_impl.h"

namespace sortie::trainer::ops {
namespace {

void check_heads(const Tensor& x, DType dtype, const Shape& shape, const char* name) {
  SORTIE_CHECK(x.dtype() == dtype && x.shape() == shape && x.stride(-1) == 1,
               "{} is {} {}, expected {} {}", name, dtype_name(x.dtype()), x.shape().to_string(),
               dtype_name(dtype), shape.to_string());
}

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, float scale,
                  const Tensor& lse) {
  SORTIE_CHECK(q.shape().dims() == 4 && k.shape().dims() == 4 && q.dtype() != DType::i32,
               "q {} {}, k {}", dtype_name(q.dtype()), q.shape().to_string(),
               k.shape().to_string());
  check_heads(k, q.dtype(), {q.size(0), q.size(1), k.size(2), q.size(3)}, "k");
  check_heads(v, q.dtype(), k.shape(), "v");
  SORTIE_CHECK(k.size(2) > 0 && q.size(2) % k.size(2) == 0, "{} heads read {} key heads", q.size(2),
               k.size(2));
  SORTIE_CHECK(scale > 0.0f, "scale {}", scale);
  SORTIE_CHECK(lse.dtype() == DType::f32 && lse.dense() &&
                   lse.shape() == Shape({q.size(0), q.size(2), q.size(1)}),
               "lse {} for q {}", lse.shape().to_string(), q.shape().to_string());
}

}  // namespace

RopeTable make_rope_table(ExecutionContext& context, std::int64_t positions,
                          std::int64_t rotary_dims, double base) {
  SORTIE_CHECK(rotary_dims % 2 == 0 && rotary_dims >= 0, "{} rotary dimensions", rotary_dims);
  const std::int64_t half = rotary_dims / 2;
  RopeTable table{context.empty(DType::f32, {positions, half}),
                  context.empty(DType::f32, {positions, half}), rotary_dims};
  for (std::int64_t i = 0; i < half; ++i) {
    const double frequency =
        std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dims));
    for (std::int64_t t = 0; t < positions; ++t) {
      const double angle = static_cast<double>(t) * frequency;
      table.cos.data<float>()[t * half + i] = static_cast<float>(std::cos(angle));
      table.sin.data<float>()[t * half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

void rope(ExecutionContext& context, Tensor& x, const RopeTable& table, bool inverse) {
  SORTIE_CHECK(x.shape().dims() == 4 && x.dtype() != DType::i32 && table.rotary_dims <= x.size(3) &&
                   x.size(1) <= table.cos.size(0),
               "x {} {}, table of {} positions and {} dimensions", dtype_name(x.dtype()),
               x.shape().to_string(), table.cos.size(0), table.rotary_dims);
  if (x.elements() > 0 && table.rotary_dims > 0) rope_cpu(context, x, table, inverse);
}

void attention_forward(ExecutionContext& context, const Tensor& q, const Tensor& k, const Tensor& v,
                       float scale, Tensor& out, Tensor& lse) {
  check_inputs(q, k, v, scale, lse);
  check_heads(out, q.dtype(), q.shape(), "out");
  if (q.elements() > 0) attention_forward_cpu(context, q, k, v, scale, out, lse);
}

void attention_backward(ExecutionContext& context, const Tensor& q, const Tensor& k,
                        const Tensor& v, const Tensor& out, const Tensor& lse, const Tensor& dout,
                        float scale, Tensor& dq, Tensor& dk, Tensor& dv) {
  check_inputs(q, k, v, scale, lse);
  check_heads(out, q.dtype(), q.shape(), "out");
  check_heads(dout, q.dtype(), q.shape(), "dout");
  check_heads(dq, q.dtype(), q.shape(), "dq");
  check_heads(dk, q.dtype(), k.shape(), "dk");
  check_heads(dv, q.dtype(), k.shape(), "dv");
  if (q.elements() > 0) attention_backward_cpu(context, q, k, v, out, lse, dout, scale, dq, dk, dv);
}

}  // namespace sortie::trainer::ops
