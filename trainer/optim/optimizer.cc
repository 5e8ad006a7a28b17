#include "trainer/optim/optimizer.h"

#include <cmath>

#include "trainer/ops/optimizer.h"

namespace sortie::trainer {

double Optimizer::gradient_norm(ExecutionContext& context) {
  // Padding in the flat buffer is zero and stays zero: the norm over all of it is the norm.
  return std::sqrt(ops::sum_of_squares(context, store_.gradients()));
}

void Optimizer::update(ExecutionContext& context, double learning_rate, double grad_norm) {
  ++updates_;
  ops::AdamWStep step{};
  step.lr = static_cast<float>(learning_rate);
  step.beta1 = static_cast<float>(config_.beta1);
  step.beta2 = static_cast<float>(config_.beta2);
  step.eps = static_cast<float>(config_.eps);
  step.grad_scale = 1.0f;
  if (config_.gradient_clipping > 0 && grad_norm > config_.gradient_clipping)
    step.grad_scale = static_cast<float>(config_.gradient_clipping / (grad_norm + 1e-6));
  const auto t = static_cast<double>(updates_);
  step.correction1 = static_cast<float>(1.0 - std::pow(config_.beta1, t));
  step.correction2 = static_cast<float>(1.0 - std::pow(config_.beta2, t));

  const std::span<bf16> copy = store_.compute_copy();
  for (const auto& parameter : store_.parameters()) {
    const auto begin = static_cast<std::size_t>(parameter->offset());
    const auto count = static_cast<std::size_t>(parameter->elements());
    step.weight_decay = parameter->spec().decay ? static_cast<float>(config_.weight_decay) : 0.0f;
    ops::adamw(context, step, store_.master().subspan(begin, count),
               store_.gradients().subspan(begin, count), store_.moment1().subspan(begin, count),
               store_.moment2().subspan(begin, count),
               copy.empty() ? copy : copy.subspan(begin, count));
  }
  store_.weights_changed();
}

}  // namespace sortie::trainer
