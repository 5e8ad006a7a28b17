// Checks of the flat updates.
#include "trainer/ops/optimizer.h"

#include "trainer/ops/optimizer_impl.h"

namespace sortie::trainer::ops {

double sum_of_squares(ExecutionContext& context, std::span<const float> values) {
  return sum_of_squares_cpu(context, values);
}

void adamw(ExecutionContext& context, const AdamWStep& step, std::span<float> w,
           std::span<const float> grad, std::span<float> m, std::span<float> v,
           std::span<bf16> compute) {
  SORTIE_CHECK(grad.size() == w.size() && m.size() == w.size() && v.size() == w.size() &&
                   (compute.empty() || compute.size() == w.size()),
               "ranges of {}, {}, {}, {}, {}", w.size(), grad.size(), m.size(), v.size(),
               compute.size());
  SORTIE_CHECK(step.correction1 > 0.0f && step.correction2 > 0.0f, "corrections {}, {}",
               step.correction1, step.correction2);
  adamw_cpu(context, step, w, grad, m, v, compute);
}

}  // namespace sortie::trainer::ops
