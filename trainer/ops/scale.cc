#include "trainer/ops/scale.h"

#include "trainer/ops/dispatch.h"

namespace sortie::trainer::ops {

void scale(ExecutionContext& context, const Tensor& x, float factor, Tensor& y) {
  SORTIE_CHECK(x.dtype() != DType::i32 && x.dtype() == y.dtype() && x.shape() == y.shape() &&
                   x.dense() && y.dense(),
               "{} {} into {} {}", dtype_name(x.dtype()), x.shape().to_string(),
               dtype_name(y.dtype()), y.shape().to_string());
  dispatch<&Backend::scale>(context, x, factor, y);
}

}  // namespace sortie::trainer::ops
