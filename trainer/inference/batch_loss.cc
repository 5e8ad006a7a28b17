#include "trainer/inference/batch_loss.h"

#include "trainer/ops/copy.h"

namespace sortie::trainer {

void BatchLoss::add(ExecutionContext& context, std::span<const std::int32_t> tokens,
                    std::span<const std::int32_t> targets, Shape shape, const Pass& pass,
                    Tensor& loss) {
  if (!tokens_.defined()) {
    tokens_ = context.empty(DType::i32, shape);
    targets_ = context.empty(DType::i32, shape);
    loss_ = context.empty(DType::f64, {2});
  }
  if (shape != tokens_.shape()) {
    const Tensor some = ops::tensor_from_host<std::int32_t>(context, tokens, shape);
    const Tensor wanted = ops::tensor_from_host<std::int32_t>(context, targets, shape);
    const Allocator::RepeatedMemory memory(context.allocator());
    return pass(some, wanted, loss);
  }
  ops::copy_from_host<std::int32_t>(context, tokens, tokens_);
  ops::copy_from_host<std::int32_t>(context, targets, targets_);
  (void)work_.run(context, [&] {
    ops::fill(context, 0.0, loss_);
    pass(tokens_, targets_, loss_);
  });
  ops::accumulate(context, loss_, loss);
}

}  // namespace sortie::trainer
