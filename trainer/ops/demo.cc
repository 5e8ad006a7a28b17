// Checks of DeMo's ops.
#include "trainer/ops/demo.h"

#include "trainer/ops/dispatch.h"
#include "trainer/ops/update_gate.h"

namespace sortie::trainer::ops {
namespace {

bool is_matrix_of(const DemoBlocks& blocks, const Tensor& x, DType dtype) {
  return x.dtype() == dtype && x.dense() && x.elements() == blocks.rows * blocks.columns;
}

void check_blocks(const DemoBlocks& blocks) {
  SORTIE_CHECK(blocks.rows >= 1 && blocks.columns >= 1 && blocks.chunk >= 1 &&
                   blocks.chunk <= DemoBlocks::kLongestSide && blocks.top_k >= 1,
               "the {} largest of blocks of {} in {} x {}", blocks.top_k, blocks.chunk, blocks.rows,
               blocks.columns);
}

void check_step(const Tensor& lr, const Tensor& gate) {
  SORTIE_CHECK(lr.dtype() == DType::f32 && lr.elements() == 1 && gate.dtype() == DType::f32 &&
                   gate.dense() && gate.elements() == kGateValues,
               "a gate of {} values, {} learning rates", gate.elements(), lr.elements());
}

}  // namespace

void demo_send(ExecutionContext& context, const DemoSend& step, const DemoBlocks& blocks,
               const Tensor& grad, Tensor& momentum, Tensor& message) {
  check_blocks(blocks);
  check_step(step.lr, step.gate);
  SORTIE_CHECK(is_matrix_of(blocks, grad, DType::f32) &&
                   is_matrix_of(blocks, momentum, DType::f32) && message.dtype() == DType::u8 &&
                   message.dense() && message.elements() == blocks.message_bytes(),
               "{} x {} from {} and {} to {} bytes", blocks.rows, blocks.columns, grad.elements(),
               momentum.elements(), message.elements());
  dispatch<&Backend::demo_send>(context, step, blocks, grad, momentum, message);
}

void demo_move(ExecutionContext& context, const DemoMove& step, const DemoBlocks& blocks,
               const Tensor& messages, Tensor& w, Tensor& compute) {
  check_blocks(blocks);
  check_step(step.lr, step.gate);
  SORTIE_CHECK(is_matrix_of(blocks, w, DType::f32) && messages.dtype() == DType::u8 &&
                   messages.shape().dims() == 2 && messages.size(1) == blocks.message_bytes() &&
                   (!compute.defined() || is_matrix_of(blocks, compute, DType::bf16)),
               "{} x {} from {} to {}, {}", blocks.rows, blocks.columns,
               messages.shape().to_string(), w.elements(), compute.elements());
  dispatch<&Backend::demo_move>(context, step, blocks, messages, w, compute);
}

}  // namespace sortie::trainer::ops
