// Flat updates over threads, in blocks of fixed size so that no bit depends on the thread count.
#include <algorithm>
#include <vector>

#include "trainer/ops/cpu/cpu_backend.h"
#include "trainer/random/random.h"

namespace sortie::trainer::ops {
namespace {

constexpr std::int64_t kBlock = 65536;  // elements

RoundingRow rounding_row(const MomentRounding& rounding, std::int64_t number) {
  const auto position = static_cast<std::uint64_t>(number);
  const std::uint64_t key = random_bits(rounding.key, position >> 32);
  return {.key0 = static_cast<std::uint32_t>(key),
          .key1 = static_cast<std::uint32_t>(key >> 32),
          .begin = static_cast<std::uint32_t>(position)};
}

/// Calls body(row, from, count) for all runs of elements in [begin, end) that share a RoundingRow.
template <class Body>
void for_each_rounding(const MomentRounding& rounding, std::int64_t begin, std::int64_t end,
                       const Body& body) {
  constexpr std::int64_t kKeyed = std::int64_t{1} << 32;  // the keys change here
  while (begin < end) {
    const std::int64_t number = rounding.number(begin);
    const std::int64_t count =
        std::min({end - begin, rounding.run(begin), kKeyed - number % kKeyed});
    body(rounding_row(rounding, number), begin, count);
    begin += count;
  }
}

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
  const float lr = *step.lr.data<float>();
  const AdamWRow row{.step_size = lr / gate[2],
                     .beta1 = step.beta1,
                     .beta2 = step.beta2,
                     .rest1 = 1.0f - step.beta1,
                     .rest2 = 1.0f - step.beta2,
                     .eps = step.eps,
                     .decay = lr * step.weight_decay,
                     .root_correction2 = gate[3],
                     .grad_scale = gate[1]};
  const auto& all = ops::kernels(context);
  float* weights = w.data<float>();
  const float* gradients = grad.data<float>();
  std::uint16_t* copies = compute.defined() ? &compute.data<bf16>()->bits : nullptr;
  const auto copies_from = [copies](std::int64_t i) {
    return copies == nullptr ? nullptr : copies + i;
  };
  if (m.dtype() == DType::bf16) {
    std::uint16_t *first = &m.data<bf16>()->bits, *second = &v.data<bf16>()->bits;
    MomentRounding rounding = step.rounding;
    if (rounding.step.defined())
      rounding.key = random_bits(rounding.key,
                                 static_cast<std::uint64_t>(*rounding.step.data<std::int64_t>()));
    parallel_ranges(context, w.elements(), kBlock, [&](std::int64_t begin, std::int64_t end) {
      for_each_rounding(rounding, begin, end,
                        [&](const RoundingRow& bits, std::int64_t i, std::int64_t count) {
                          all.adamw_rounded(row, bits, weights + i, gradients + i, first + i,
                                            second + i, copies_from(i), count);
                        });
    });
    return context.poll();
  }
  float *first = m.data<float>(), *second = v.data<float>();
  parallel_ranges(context, w.elements(), kBlock, [&](std::int64_t begin, std::int64_t end) {
    all.adamw(row, weights + begin, gradients + begin, first + begin, second + begin,
              copies_from(begin), end - begin);
  });
  context.poll();
}

}  // namespace sortie::trainer::ops
