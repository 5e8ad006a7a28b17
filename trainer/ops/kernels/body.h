// All row kernels in the namespace SORTIE_ISA_NAMESPACE, compiled once per instruction set. Only
// fixed-width integer types are included, see body_math.h.
#include <cstdint>

#include "trainer/ops/kernels/table.h"

namespace sortie::trainer::ops {
namespace SORTIE_ISA_NAMESPACE {
namespace {

#include "trainer/ops/kernels/body_math.h"
//
#include "trainer/ops/kernels/body_attention.h"
#include "trainer/ops/kernels/body_elementwise.h"
#include "trainer/ops/kernels/body_norm.h"
#include "trainer/ops/kernels/body_optimizer.h"

template <class T>
constexpr TypedKernels typed_kernels() {
  return {
      .norm_forward = norm_forward<T>,
      .norm_backward = norm_backward<T>,
      .swiglu_forward = swiglu_forward<T>,
      .swiglu_backward = swiglu_backward<T>,
      .gelu_forward = gelu_forward<T>,
      .gelu_backward = gelu_backward<T>,
      .gelu_new_forward = gelu_new_forward<T>,
      .gelu_new_backward = gelu_new_backward<T>,
      .add = add<T>,
      .add_to_f32 = add_to_f32<T>,
      .add_scaled_to_f32 = add_scaled_to_f32<T>,
      .from_f32 = from_f32<T>,
      .to_f32 = to_f32<T>,
      .dot = dot<T>,
      .rope = rope<T>,
      .rope_interleaved = rope_interleaved<T>,
      .softmax = softmax<T>,
      .softmax_part = softmax_part<T>,
      .softmax_backward = softmax_backward<T>,
      .exp_row = exp_row<T>,
      .scale = scale<T>,
      .dropout = dropout<T>,
  };
}

}  // namespace

extern const Kernels kKernels;
constexpr Kernels kTable = {.isa = Isa::SORTIE_ISA_NAMESPACE,
                            .f32 = typed_kernels<float>(),
                            .bf16 = typed_kernels<b16>(),
                            .adamw = adamw,
                            .adamw_rounded = adamw_rounded,
                            .sum_of_squares = sum_of_squares};
const Kernels kKernels = kTable;

}  // namespace SORTIE_ISA_NAMESPACE
}  // namespace sortie::trainer::ops
