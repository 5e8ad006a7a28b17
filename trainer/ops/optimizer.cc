// Checks of the flat updates.
#include "trainer/ops/optimizer.h"

#include "trainer/ops/dispatch.h"
#include "trainer/ops/update_gate.h"

namespace sortie::trainer::ops {
namespace {

bool is_range(const Tensor& x, DType dtype, std::int64_t elements) {
  return x.dtype() == dtype && x.dense() && x.elements() == elements;
}

}  // namespace

void sum_of_squares(ExecutionContext& context, const Tensor& values, Tensor& sum) {
  SORTIE_CHECK(is_range(values, DType::f32, values.elements()) && is_range(sum, DType::f64, 1),
               "sum of {} {} in {} {}", dtype_name(values.dtype()), values.shape().to_string(),
               dtype_name(sum.dtype()), sum.shape().to_string());
  dispatch<&Backend::sum_of_squares>(context, values, sum);
}

void adamw(ExecutionContext& context, const AdamWStep& step, Tensor& w, const Tensor& grad,
           Tensor& m, Tensor& v, Tensor& compute) {
  const std::int64_t count = w.elements();
  const bool narrow = m.dtype() == DType::bf16;
  const DType kept = narrow ? DType::bf16 : DType::f32;
  SORTIE_CHECK(is_range(w, DType::f32, count) && is_range(grad, DType::f32, count) &&
                   is_range(m, kept, count) && is_range(v, kept, count) &&
                   (!compute.defined() || is_range(compute, DType::bf16, count)),
               "ranges of {}, {}, {}, {}, {}", count, grad.elements(), m.elements(), v.elements(),
               compute.elements());
  SORTIE_CHECK(is_range(step.gate, DType::f32, kGateValues) && is_range(step.lr, DType::f32, 1) &&
                   (!step.rounding.step.defined() || is_range(step.rounding.step, DType::i64, 1)),
               "a gate of {} values, {} learning rates", step.gate.elements(), step.lr.elements());
  const MomentRounding& rounding = step.rounding;
  SORTIE_CHECK(!narrow || (rounding.columns > 0 && rounding.stride >= rounding.columns &&
                           rounding.first >= 0 && rounding.begin >= 0),
               "a block of {} of {} columns from {} on", rounding.columns, rounding.stride,
               rounding.first);
  dispatch<&Backend::adamw>(context, step, w, grad, m, v, compute);
}

}  // namespace sortie::trainer::ops
