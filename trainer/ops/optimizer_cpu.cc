// Flat updates over threads, in blocks of fixed size so that no bit depends on the thread count.
#include <cmath>
#include <vector>

#include "trainer/ops/backend_cpu.h"
#include "trainer/ops/optimizer_impl.h"

namespace sortie::trainer::ops {
namespace {

constexpr std::int64_t kBlock = 65536;  // elements

}  // namespace

double sum_of_squares_cpu(ExecutionContext& context, std::span<const float> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<double> partial(static_cast<std::size_t>((count + kBlock - 1) / kBlock));
  const auto& all = kernels(context);
  parallel_ranges(context, count, kBlock, [&](std::int64_t begin, std::int64_t end) {
    partial[static_cast<std::size_t>(begin / kBlock)] =
        all.sum_of_squares(values.data() + begin, end - begin);
  });
  double sum = 0.0;
  for (const double part : partial) sum += part;
  context.poll();
  return sum;
}

void adamw_cpu(ExecutionContext& context, const AdamWStep& step, std::span<float> w,
               std::span<const float> grad, std::span<float> m, std::span<float> v,
               std::span<bf16> compute) {
  const AdamWRow row{.step_size = step.lr / step.correction1,
                     .beta1 = step.beta1,
                     .beta2 = step.beta2,
                     .rest1 = 1.0f - step.beta1,
                     .rest2 = 1.0f - step.beta2,
                     .eps = step.eps,
                     .decay = step.lr * step.weight_decay,
                     .root_correction2 = 1.0f / std::sqrt(step.correction2),
                     .grad_scale = step.grad_scale};
  const auto& all = kernels(context);
  parallel_ranges(context, static_cast<std::int64_t>(w.size()), kBlock,
                  [&](std::int64_t begin, std::int64_t end) {
                    auto* narrow = compute.empty() ? nullptr : &compute[0].bits + begin;
                    all.adamw(row, w.data() + begin, grad.data() + begin, m.data() + begin,
                              v.data() + begin, narrow, end - begin);
                  });
  context.poll();
}

}  // namespace sortie::trainer::ops
