// Keys of latent attention.
#include "trainer/ops/cuda/latent.h"

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"

namespace sortie::trainer::ops::cuda {
namespace {

template <class T>
HeadColumns<T> head_columns(const Tensor& x) {
  return {address<T>(x), x.stride(0), x.stride(1)};
}
LatentSizes sizes_of(const Tensor& k, const Tensor& rope) {
  const std::int64_t shared = rope.size(1);
  return {.rows = k.size(0),
          .heads = static_cast<int>(k.size(1)),
          .own = static_cast<int>(k.size(2) - shared),
          .shared = static_cast<int>(shared)};
}

}  // namespace

void CudaBackend::latent_keys_forward(Context& context, const Tensor& kv, const Tensor& rope,
                                      Tensor& k) {
  with_float_type(k.dtype(), [&]<class T> {
    join_latent_keys(current_stream(context), sizes_of(k, rope), head_columns<const T>(kv),
                     rows_of<const T>(rope), head_columns<T>(k));
  });
}

void CudaBackend::latent_keys_backward(Context& context, const Tensor& dk, Tensor& dkv,
                                       Tensor& drope) {
  with_float_type(dk.dtype(), [&]<class T> {
    split_latent_keys(current_stream(context), sizes_of(dk, drope), head_columns<const T>(dk),
                      head_columns<T>(dkv), rows_of<T>(drope));
  });
}

}  // namespace sortie::trainer::ops::cuda
