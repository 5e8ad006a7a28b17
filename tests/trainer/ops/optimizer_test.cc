// Flat updates against the f64 reference.
#include "trainer/ops/optimizer.h"

#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/reference.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/update_gate.h"

namespace sortie::trainer {
namespace {

double sum_of_squares(ExecutionContext& context, const Tensor& values) {
  Tensor sum = context.empty(DType::f64, {1});
  ops::sum_of_squares(context, values, sum);
  return ops::read_scalar<double>(context, sum);
}

ops::AdamWStep step_of(ExecutionContext& context, const reference::AdamW& a) {
  return {
      .lr = static_cast<float>(a.lr),
      .beta1 = static_cast<float>(a.beta1),
      .beta2 = static_cast<float>(a.beta2),
      .eps = static_cast<float>(a.eps),
      .weight_decay = static_cast<float>(a.weight_decay),
      .gate = ops::open_gate(context, a.beta1, a.beta2, a.step, static_cast<float>(a.grad_scale))};
}

}  // namespace

TEST_CASE("ten AdamW steps equal the reference") {
  for_each_variant(false, [](const Variant& v) {
    for (const std::int64_t count : {1, 100, 70001}) {
      CAPTURE(count);
      Values w = random_values(DType::f32, 1, count), m(w.size()), s(w.size());
      Tensor w_t = make_tensor(v.context, DType::f32, {count}, w);
      Tensor m_t = v.context.zeros(DType::f32, {count});
      Tensor v_t = v.context.zeros(DType::f32, {count});
      Tensor compute = v.context.zeros(DType::bf16, {count}), none;
      const bool narrow = v.dtype == DType::bf16;
      reference::AdamW a{1e-2, 0.9, 0.95, 1e-8, 0.1, 0.5, 0};
      for (a.step = 1; a.step <= 10; ++a.step) {
        const Values grad =
            random_values(DType::f32, 10 + static_cast<std::uint64_t>(a.step), count);
        reference::adamw(a, w, grad, m, s);
        ops::adamw(v.context, step_of(v.context, a), w_t,
                   make_tensor(v.context, DType::f32, {count}, grad), m_t, v_t,
                   narrow ? compute : none);
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
    Tensor w = make_tensor(context, DType::f32, {count}, random_values(1, count)), none;
    const Tensor grad = make_tensor(context, DType::f32, {count}, random_values(2, count));
    Tensor m = context.zeros(DType::f32, {count}), s = context.zeros(DType::f32, {count});
    for (int step = 1; step <= 3; ++step)
      ops::adamw(context, step_of(context, {1e-2, 0.9, 0.95, 1e-8, 0.1, 0.5, step}), w, grad, m, s,
                 none);
    return values_of(w);
  });
}

TEST_CASE("flat updates have the same bits wherever their ranges lie") {
  ExecutionContext context(1, test::device());
  const std::int64_t count = 5003;
  std::vector<Values> results;
  for (const std::int64_t first : {0, 1, 4}) {
    const auto range = [&](const Values& values) {
      Tensor all = make_tensor(context, DType::f32, {first + count},
                               Values(static_cast<std::size_t>(first + count), kNaN));
      Tensor part = all.slice(0, first, count);
      ops::copy(context, make_tensor(context, DType::f32, {count}, values), part);
      return part;
    };
    const Values none(static_cast<std::size_t>(count), 0.0);
    Tensor w = range(random_values(1, count)), m = range(none), v = range(none);
    const Tensor grad = range(random_values(2, count));
    Tensor compute = context.empty(DType::bf16, {first + count}).slice(0, first, count);
    ops::adamw(context, step_of(context, {1e-2, 0.9, 0.95, 1e-8, 0.1, 0.5, 1}), w, grad, m, v,
               compute);
    Values all = values_of(w);
    for (const Tensor* more : {&m, &v, &compute})
      for (const double value : values_of(*more)) all.push_back(value);
    all.push_back(sum_of_squares(context, w));
    results.push_back(all);
  }
  CHECK(results[1] == results[0]);
  CHECK(results[2] == results[0]);
}

TEST_CASE("the sum of squares is exact to f64, the same for any threads, and keeps NaN and Inf") {
  for_each_variant(false, [](const Variant& v) {
    for (const std::int64_t count : {0, 1, 77, 200003}) {
      CAPTURE(count);
      const Values x = random_values(DType::f32, 1, count);
      double expected = 0.0;
      for (const double value : x) expected += value * value;
      if (count == 0) {
        CHECK(sum_of_squares(v.context, v.context.empty(DType::f32, {0})) == 0.0);
        continue;
      }
      const Tensor t = make_tensor(v.context, DType::f32, {count}, x);
      CHECK(std::abs(sum_of_squares(v.context, t) - expected) <= 1e-12 * expected);
      for (const float bad :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        Tensor last = t.slice(0, count - 1, 1);
        ops::copy_from_host<float>(v.context, std::span(&bad, 1), last);
        CHECK_FALSE(std::isfinite(sum_of_squares(v.context, t)));
      }
    }
  });
  check_same_bits(kAnyThreads, [](ExecutionContext& context) {
    const Tensor t = make_tensor(context, DType::f32, {300007}, random_values(1, 300007));
    return Values{sum_of_squares(context, t)};
  });
}

}  // namespace sortie::trainer
