// Compares flat updates with the f64 reference.
#include "trainer/ops/optimizer.h"

#include <array>
#include <bit>

#include "tests/support/open_gate.h"
#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/reference.h"
#include "trainer/ops/copy.h"
#include "trainer/random/random.h"

namespace sortie::trainer {
namespace {

double sum_of_squares(ExecutionContext& context, const Tensor& values) {
  Tensor sum = context.empty(DType::f64, {1});
  ops::sum_of_squares(context, values, sum);
  return ops::read_scalar<double>(context, sum);
}

ops::AdamWStep step_of(ExecutionContext& context, const reference::AdamW& a) {
  return {
      .lr = make_tensor(context, DType::f32, {1}, Values{a.lr}),
      .beta1 = static_cast<float>(a.beta1),
      .beta2 = static_cast<float>(a.beta2),
      .eps = static_cast<float>(a.eps),
      .weight_decay = static_cast<float>(a.weight_decay),
      .gate = test::open_gate(context, a.beta1, a.beta2, a.step, static_cast<float>(a.grad_scale))};
}

/// Element numbers of a range that is a part of a matrix with `stride` columns.
struct NumberedPart {
  std::int64_t first = 0, begin = 0, columns = 1, stride = 1;
};
ops::AdamWStep rounded_step(ExecutionContext& context, const reference::AdamW& a, std::uint64_t key,
                            NumberedPart part = {}) {
  ops::AdamWStep step = step_of(context, a);
  Tensor number = context.empty(DType::i64, {1});
  ops::write_scalar<std::int64_t>(context, a.step, number);
  step.rounding = {.key = key,
                   .step = number,
                   .first = part.first,
                   .begin = part.begin,
                   .columns = part.columns,
                   .stride = part.stride};
  return step;
}

/// Returns the neighbours of a value in bf16, the one nearer to 0 first.
std::pair<double, double> bf16_neighbours(double value) {
  const auto wide = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  const auto at = [](std::uint32_t bits) {
    return static_cast<double>(std::bit_cast<float>(bits << 16));
  };
  return {at(wide >> 16), at((wide >> 16) + ((wide & 0xffffu) != 0 ? 1u : 0u))};
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

TEST_CASE("moments in bf16 are those of AdamW, rounded up or down so that their mean is exact") {
  for_each_variant(false, [](const Variant& v) {
    const std::int64_t count = 70001;
    const reference::AdamW a{1e-2, 0.9, 0.95, 1e-8, 0.1, 0.5, 3};
    const Values w = random_values(DType::f32, 1, count),
                 grad = random_values(DType::f32, 2, count);
    const Values m = random_values(DType::bf16, 3, count);
    Values s = random_values(DType::bf16, 4, count);
    for (double& value : s) value = std::abs(value);
    Values w_new = w, m_new = m, s_new = s;
    reference::adamw(a, w_new, grad, m_new, s_new);
    const auto tensor = [&](DType dtype, const Values& values) {
      return make_tensor(v.context, dtype, {count}, values);
    };
    Tensor w_t = tensor(DType::f32, w), m_t = tensor(DType::bf16, m), s_t = tensor(DType::bf16, s);
    const bool narrow = v.dtype == DType::bf16;
    Tensor compute = narrow ? v.context.zeros(DType::bf16, {count}) : Tensor();
    ops::adamw(v.context, rounded_step(v.context, a, 5), w_t, tensor(DType::f32, grad), m_t, s_t,
               compute);
    // Weights are computed from the moments before these are rounded.
    CHECK(relative_error(values_of(w_t), w_new) <= 1e-6);
    if (narrow) CHECK(values_of(compute) == rounded(DType::bf16, values_of(w_t)));
    for (const auto& [tensor_of, exact] : {std::pair(&m_t, &m_new), std::pair(&s_t, &s_new)}) {
      const Values kept = values_of(*tensor_of);
      double steps = 0.0, up = 0.0;
      std::int64_t others = 0;
      for (std::size_t i = 0; i < kept.size(); ++i) {
        const auto [low, high] = bf16_neighbours((*exact)[i]);
        // A value computed in f32 may be on the other side of a bf16 value.
        const double gap = std::max(std::abs(high - low), std::abs(low) * 0x1p-8);
        if (std::abs(kept[i] - (*exact)[i]) > 1.001 * gap) ++others;
        steps += (kept[i] - (*exact)[i]) / gap;
        up += std::abs(kept[i]) > std::abs((*exact)[i]) ? 1.0 : 0.0;
      }
      CHECK(others == 0);
      // The error has mean 0 and a standard deviation of 0.41 gaps, and is as often up as down. The
      // limits are 6 standard deviations.
      CHECK(std::abs(steps / static_cast<double>(count)) <= 0.01);
      CHECK(std::abs(up / static_cast<double>(count) - 0.5) <= 0.012);
    }
  });
}

TEST_CASE(
    "a second moment in bf16 follows gradients that are small beside it, which the nearest "
    "number would not") {
  ExecutionContext context(1, test::device());
  const std::int64_t count = 4096;
  constexpr int kUpdates = 2000;
  // v decreases from 1 to 0.36^2. A step changes it by less than 0.1 %, and bf16 values are 0.4 %
  // apart.
  const double beta2 = 0.999, size = 0.36;
  Tensor w = context.zeros(DType::f32, {count}), none;
  Tensor m = context.zeros(DType::bf16, {count});
  Tensor s = make_tensor(context, DType::bf16, {count}, Values(count, 1.0));
  const Tensor grad = make_tensor(context, DType::f32, {count}, Values(count, size));
  double exact = 1.0;
  bf16 nearest(1.0f);
  for (int step = 1; step <= kUpdates; ++step) {
    ops::adamw(context, rounded_step(context, {1e-3, 0.9, beta2, 1e-8, 0.0, 1.0, step}, 7), w, grad,
               m, s, none);
    exact = beta2 * exact + (1.0 - beta2) * size * size;
    nearest = bf16(static_cast<float>(beta2 * static_cast<double>(static_cast<float>(nearest)) +
                                      (1.0 - beta2) * size * size));
  }
  CHECK(static_cast<float>(nearest) > 0.95f);  // it has not changed
  double first = 0.0, second = 0.0, spread = 0.0;
  for (const double value : values_of(m)) first += value / count;
  for (const double value : values_of(s)) {
    second += value / count;
    spread += (value - exact) * (value - exact) / count;
  }
  CHECK(first == doctest::Approx(size).epsilon(1e-3));
  CHECK(second == doctest::Approx(exact).epsilon(5e-3));
  // A single element is some gaps off; AdamW's square root halves that.
  CHECK(std::sqrt(spread) <= 0.1 * exact);
}

TEST_CASE(
    "the rounding of moments is that of the element, wherever it lies and however it is cut") {
  check_same_bits(kAnyThreads, [](ExecutionContext& context) {
    constexpr std::int64_t kRows = 37, kColumns = 211, kAll = kRows * kColumns;
    // From 2^32 on, another key is used: some rows are on either side of it, and one contains it.
    const std::int64_t base = (std::int64_t{1} << 32) - kColumns * 20 - 100;
    const Values w = random_values(1, kAll), grad = random_values(2, kAll);
    const reference::AdamW a{1e-2, 0.9, 0.95, 1e-8, 0.1, 0.5, 1};
    struct Part {
      std::int64_t row = 0, rows = kRows, column = 0, columns = kColumns;
      std::int64_t begin = 0;  // first elements, which others hold
    };
    // Updates the values of a part, picked out of all values. Returns its w, m and v.
    const auto update = [&](const Part& part, std::int64_t gap) {
      const auto picked = [&](const Values& all) {
        Values own;
        for (std::int64_t i = part.begin; i < part.rows * part.columns; ++i)
          own.push_back(all[static_cast<std::size_t>((part.row + i / part.columns) * kColumns +
                                                     part.column + i % part.columns)]);
        return own;
      };
      const std::int64_t count = part.rows * part.columns - part.begin;
      const auto range = [&](DType dtype, const Values& values) {
        return make_tensor(context, dtype, {gap + count},
                           [&] {
                             Values wide(static_cast<std::size_t>(gap), kNaN);
                             wide.insert(wide.end(), values.begin(), values.end());
                             return wide;
                           }())
            .slice(0, gap, count);
      };
      const Values none(static_cast<std::size_t>(count), 0.0);
      Tensor w_t = range(DType::f32, picked(w)), m = range(DType::bf16, none),
             v = range(DType::bf16, none), copy;
      ops::adamw(context,
                 rounded_step(context, a, 9,
                              {.first = base + part.row * kColumns + part.column,
                               .begin = part.begin,
                               .columns = part.columns,
                               .stride = kColumns}),
                 w_t, range(DType::f32, picked(grad)), m, v, copy);
      return std::array{values_of(w_t), values_of(m), values_of(v)};
    };
    const auto whole = update({}, 0);
    for (const Part& part : {Part{}, Part{.begin = 3}, Part{.row = 5, .rows = 20, .begin = 212},
                             Part{.column = 100, .columns = 60},
                             Part{.row = 15, .rows = 11, .column = 7, .columns = 1},
                             Part{.row = 2, .rows = 30, .column = 206, .columns = 5, .begin = 11}})
      for (const std::int64_t gap : {0, 1, 4}) {
        const auto own = update(part, gap);
        for (std::size_t which = 0; which < own.size(); ++which) {
          bool same = true;
          for (std::size_t i = 0; i < own[which].size(); ++i) {
            const std::int64_t at = part.begin + static_cast<std::int64_t>(i);
            same = same && own[which][i] == whole[which][static_cast<std::size_t>(
                                                (part.row + at / part.columns) * kColumns +
                                                part.column + at % part.columns)];
          }
          CHECK(same);
        }
      }
    Values all;
    for (const Values& values : whole) all.insert(all.end(), values.begin(), values.end());
    return all;
  });
}

TEST_CASE("moments in bf16 that are not finite stay so") {
  for_each_variant(false, [](const Variant& v) {
    const double inf = std::numeric_limits<double>::infinity();
    Tensor w = v.context.zeros(DType::f32, {3}), none;
    Tensor m = v.context.zeros(DType::bf16, {3}), s = v.context.zeros(DType::bf16, {3});
    const Tensor grad = make_tensor(v.context, DType::f32, {3}, {kNaN, inf, -inf});
    ops::adamw(v.context, rounded_step(v.context, {1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0, 1}, 1), w, grad,
               m, s, none);
    const Values first = values_of(m), second = values_of(s);
    CHECK(std::isnan(first[0]));
    CHECK(std::isnan(second[0]));
    CHECK(first[1] == inf);
    CHECK(first[2] == -inf);
    CHECK(second[1] == inf);
    CHECK(second[2] == inf);
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
