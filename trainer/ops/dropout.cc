// Checks of dropout.
#include "trainer/ops/dropout.h"

#include "trainer/ops/dispatch.h"

namespace sortie::trainer::ops {

bool is_sample_number(const Dropout& dropout) {
  return !dropout.first.defined() ||
         (dropout.first.dtype() == DType::i64 && dropout.first.elements() == 1);
}

void dropout(ExecutionContext& context, const Dropout& dropout, std::int64_t samples,
             const Tensor& x, Tensor& y) {
  SORTIE_CHECK(x.dtype() == y.dtype() && x.dtype() != DType::i32 && x.shape() == y.shape() &&
                   x.dense() && y.dense(),
               "x {} {}, y {} {}", dtype_name(x.dtype()), x.shape().to_string(),
               dtype_name(y.dtype()), y.shape().to_string());
  SORTIE_CHECK(dropout.probability > 0.0f && dropout.probability < 1.0f && samples > 0 &&
                   x.elements() % samples == 0,
               "dropout {} of {} over {} samples", dropout.probability, x.shape().to_string(),
               samples);
  SORTIE_CHECK(is_sample_number(dropout), "a dropout whose first sample is {} {}",
               dtype_name(dropout.first.dtype()), dropout.first.shape().to_string());
  dispatch<&Backend::dropout>(context, dropout, samples, x, y);
}

}  // namespace sortie::trainer::ops
