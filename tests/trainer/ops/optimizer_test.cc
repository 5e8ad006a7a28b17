// Flat updates against the f64 reference.
#include "trainer/ops/optimizer.h"

#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/reference.h"

namespace sortie::trainer {
namespace {

std::span<float> span_of(const Tensor& tensor) {
  return {tensor.data<float>(), static_cast<std::size_t>(tensor.elements())};
}

ops::AdamWStep step_of(const reference::AdamW& a) {
  return {.lr = static_cast<float>(a.lr),
          .beta1 = static_cast<float>(a.beta1),
          .beta2 = static_cast<float>(a.beta2),
          .eps = static_cast<float>(a.eps),
          .weight_decay = static_cast<float>(a.weight_decay),
          .grad_scale = static_cast<float>(a.grad_scale),
          .correction1 = static_cast<float>(1.0 - std::pow(a.beta1, a.step)),
          .correction2 = static_cast<float>(1.0 - std::pow(a.beta2, a.step))};
}

}  // namespace

TEST_CASE("ten AdamW steps equal the reference") {
  for_each_variant(false, [](const Variant& v) {
    for (const std::int64_t count : {1, 100, 70001}) {
      CAPTURE(count);
      Values w = random_values(DType::f32, 1, count), m(w.size()), s(w.size());
      const Tensor w_t = make_tensor(v.context, DType::f32, {count}, w);
      const Tensor m_t = v.context.zeros(DType::f32, {count});
      const Tensor v_t = v.context.zeros(DType::f32, {count});
      const Tensor compute = v.context.zeros(DType::bf16, {count});
      const bool narrow = v.dtype == DType::bf16;
      reference::AdamW a{1e-2, 0.9, 0.95, 1e-8, 0.1, 0.5, 0};
      for (a.step = 1; a.step <= 10; ++a.step) {
        const Values grad =
            random_values(DType::f32, 10 + static_cast<std::uint64_t>(a.step), count);
        reference::adamw(a, w, grad, m, s);
        ops::adamw(v.context, step_of(a), span_of(w_t),
                   span_of(make_tensor(v.context, DType::f32, {count}, grad)), span_of(m_t),
                   span_of(v_t),
                   narrow ? std::span(compute.data<bf16>(), static_cast<std::size_t>(count))
                          : std::span<bf16>());
      }
      CHECK(relative_error(values_of(w_t), w) <= 1e-5);
      CHECK(relative_error(values_of(m_t), m) <= 1e-5);
      CHECK(relative_error(values_of(v_t), s) <= 1e-5);
      if (narrow) CHECK(values_of(compute) == rounded(DType::bf16, values_of(w_t)));
    }
  });
}

TEST_CASE("AdamW has the same bits on any number of threads") {
  check_same_bits(kAnyThreads, [](ExecutionContext& context) {
    const std::int64_t count = 200003;
    const Tensor w = make_tensor(context, DType::f32, {count}, random_values(1, count));
    const Tensor grad = make_tensor(context, DType::f32, {count}, random_values(2, count));
    const Tensor m = context.zeros(DType::f32, {count}), s = context.zeros(DType::f32, {count});
    for (int step = 1; step <= 3; ++step)
      ops::adamw(context, step_of({1e-2, 0.9, 0.95, 1e-8, 0.1, 0.5, step}), span_of(w),
                 span_of(grad), span_of(m), span_of(s), {});
    return values_of(w);
  });
}

TEST_CASE("the sum of squares is exact to f64, the same for any threads, and keeps NaN and Inf") {
  for_each_variant(false, [](const Variant& v) {
    for (const std::int64_t count : {0, 1, 77, 200003}) {
      CAPTURE(count);
      const Values x = random_values(DType::f32, 1, count);
      double expected = 0.0;
      for (const double value : x) expected += value * value;
      if (count == 0) {
        CHECK(ops::sum_of_squares(v.context, {}) == 0.0);
        continue;
      }
      const Tensor t = make_tensor(v.context, DType::f32, {count}, x);
      CHECK(std::abs(ops::sum_of_squares(v.context, span_of(t)) - expected) <= 1e-12 * expected);
      for (const float bad :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        t.data<float>()[count - 1] = bad;
        CHECK_FALSE(std::isfinite(ops::sum_of_squares(v.context, span_of(t))));
      }
    }
  });
  check_same_bits(kAnyThreads, [](ExecutionContext& context) {
    const Tensor t = make_tensor(context, DType::f32, {300007}, random_values(1, 300007));
    return Values{ops::sum_of_squares(context, span_of(t))};
  });
}

}  // namespace sortie::trainer
