// Rotary position embedding.
#include "trainer/ops/cuda/rope.h"

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"

namespace sortie::trainer::ops::cuda {

void CudaBackend::rope(Context& context, Tensor& x, const RopeTable& table, const Tensor& positions,
                       bool inverse) {
  with_float_type(x.dtype(), [&]<class T> {
    RopeHeads<T> heads{.data = address<T>(x),
                       .samples = x.size(0),
                       .tokens = x.size(1),
                       .heads = x.size(2),
                       .half = table.rotary_dims / 2,
                       .sample = x.stride(0),
                       .token = x.stride(1),
                       .head = x.stride(2),
                       .interleaved = table.interleaved};
    const auto whole = [](std::int64_t elements) {
      return elements * static_cast<std::int64_t>(sizeof(T)) % 16 == 0;
    };
    heads.in_pieces = reinterpret_cast<std::uintptr_t>(heads.data) % 16 == 0 &&
                      whole(heads.sample) && whole(heads.token) && whole(heads.head) &&
                      whole(table.interleaved ? table.rotary_dims : heads.half);
    const RopeAngles angles{.cos = address<const float>(table.cos),
                            .sin = address<const float>(table.sin),
                            .at = address<const std::int32_t>(positions),
                            .positions = table.cos.size(0)};
    rope_heads(current_stream(context), heads, angles, inverse ? -1.0f : 1.0f);
  });
}

}  // namespace sortie::trainer::ops::cuda
