#include "trainer/ops/cpu/attention_tiles.h"
#include "trainer/ops/cpu/cpu_backend.h"

namespace sortie::trainer::ops {

void CpuBackend::rope(ExecutionContext& context, Tensor& x, const RopeTable& table,
                      const Tensor& positions, bool inverse) {
  const std::int64_t tokens = x.size(1);
  const std::int64_t heads = x.size(2);
  const std::int64_t half = table.rotary_dims / 2;
  const auto& kernels = typed_kernels(context, x.dtype());
  const auto turn = table.interleaved ? kernels.rope_interleaved : kernels.rope;
  const float* cos = table.cos.data<float>();
  const float* sin = table.sin.data<float>();
  const std::int32_t* at = positions.defined() ? positions.data<std::int32_t>() : nullptr;
  parallel_ranges(context, x.size(0) * tokens, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t t = row % tokens;
      const std::int64_t position = at != nullptr ? at[row] : t;
      SORTIE_CHECK(position >= 0 && position < table.cos.size(0), "position {} of {}", position,
                   table.cos.size(0));
      for (std::int64_t h = 0; h < heads; ++h)
        turn(head_of(x, row / tokens, h).row(t), cos + position * half, sin + position * half, half,
             inverse ? -1.0f : 1.0f);
    }
  });
}

}  // namespace sortie::trainer::ops
