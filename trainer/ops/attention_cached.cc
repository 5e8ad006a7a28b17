#include "trainer/ops/attention_cached.h"

#include "trainer/ops/dispatch.h"

namespace sortie::trainer::ops {

void attention_cached(ExecutionContext& context, const Tensor& q, const Tensor& k, const Tensor& v,
                      const AttentionMask& mask, Tensor& out) {
  SORTIE_CHECK(q.dtype() != DType::i32 && k.dtype() == q.dtype() && v.dtype() == q.dtype() &&
                   out.dtype() == q.dtype(),
               "q {}, k {}, v {}, out {}", dtype_name(q.dtype()), dtype_name(k.dtype()),
               dtype_name(v.dtype()), dtype_name(out.dtype()));
  const auto fits = [&](const Tensor& x, std::int64_t tokens, std::int64_t heads,
                        std::int64_t dims) {
    return x.shape() == Shape({q.size(0), tokens, heads, dims}) && x.stride(-1) == 1;
  };
  SORTIE_CHECK(fits(k, k.size(1), k.size(2), q.size(3)) &&
                   fits(v, k.size(1), k.size(2), v.size(3)) &&
                   fits(out, q.size(1), q.size(2), v.size(3)) && k.size(1) >= q.size(1) &&
                   q.size(2) % k.size(2) == 0,
               "q {}, k {}, v {}, out {}", q.shape().to_string(), k.shape().to_string(),
               v.shape().to_string(), out.shape().to_string());
  SORTIE_CHECK(!mask.document_start.defined() && !mask.dropout, "documents or dropout");
  SORTIE_CHECK(
      !mask.place.defined() || (mask.place.dtype() == DType::i32 && mask.place.elements() > 0),
      "places in {}", dtype_name(mask.place.dtype()));
  context.count_flop(2 * q.elements() / q.size(3) * k.size(1) * (q.size(3) + v.size(3)));
  dispatch<&Backend::attention_cached>(context, q, k, v, mask, out);
}

}  // namespace sortie::trainer::ops
