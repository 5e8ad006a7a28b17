// Flat updates over threads, in blocks of fixed size so that no bit depends on the thread count.
#include <vector>

#include "trainer/ops/cpu/cpu_backend.h"

namespace sortie::trainer::ops {
namespace {

constexpr std::int64_t kBlock = 65536;  // elements

}  // namespace

void CpuBackend::sum_of_squares(ExecutionContext& context, const Tensor& values, Tensor& sum) {
  const std::int64_t count = values.elements();
  const float* from = values.data<float>();
  std::vector<double> partial(static_cast<std::size_t>((count + kBlock - 1) / kBlock));
  const auto& all = ops::kernels(context);
  parallel_ranges(context, count, kBlock, [&](std::int64_t begin, std::int64_t end) {
    partial[static_cast<std::size_t>(begin / kBlock)] =
        all.sum_of_squares(from + begin, end - begin);
  });
  double total = 0.0;
  for (const double part : partial) total += part;
  *sum.data<double>() = total;
  context.poll();
}

void CpuBackend::adamw(ExecutionContext& context, const AdamWStep& step, Tensor& w,
                       const Tensor& grad, Tensor& m, Tensor& v, Tensor& compute) {
  const float* gate = step.gate.data<float>();
  if (gate[0] == 0.0f) return;
  const AdamWRow row{.step_size = step.lr / gate[2],
                     .beta1 = step.beta1,
                     .beta2 = step.beta2,
                     .rest1 = 1.0f - step.beta1,
                     .rest2 = 1.0f - step.beta2,
                     .eps = step.eps,
                     .decay = step.lr * step.weight_decay,
                     .root_correction2 = gate[3],
                     .grad_scale = gate[1]};
  const auto& all = ops::kernels(context);
  float *weights = w.data<float>(), *first = m.data<float>(), *second = v.data<float>();
  const float* gradients = grad.data<float>();
  std::uint16_t* copies = compute.defined() ? &compute.data<bf16>()->bits : nullptr;
  parallel_ranges(context, w.elements(), kBlock, [&](std::int64_t begin, std::int64_t end) {
    all.adamw(row, weights + begin, gradients + begin, first + begin, second + begin,
              copies == nullptr ? nullptr : copies + begin, end - begin);
  });
  context.poll();
}

}  // namespace sortie::trainer::ops
