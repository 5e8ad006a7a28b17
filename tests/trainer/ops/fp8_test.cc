// Compares casts to FP8 with a search among all codes, and tests products of FP8 operands.
#include "trainer/ops/fp8.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/reference.h"
#include "trainer/ops/products.h"

namespace sortie::trainer {
namespace {

using ops::Fp8Format;
constexpr Fp8Format kFp8Formats[] = {Fp8Format::e4m3, Fp8Format::e5m2};
constexpr int kFp8NaN = 0x7f;

double largest_of(Fp8Format format) {
  return format == Fp8Format::e4m3 ? 448.0 : 57344.0;
}

/// Returns the value of a code by the definition of the format.
double fp8_value(Fp8Format format, int code) {
  const int width = format == Fp8Format::e4m3 ? 3 : 2, bias = format == Fp8Format::e4m3 ? 7 : 15;
  const int size = code & 0x7f, exponent = size >> width, mantissa = size & ((1 << width) - 1);
  const double sign = code >= 0x80 ? -1.0 : 1.0;
  if (format == Fp8Format::e4m3 ? size == 0x7f : exponent == 31) return kNaN;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - width);
  return sign * std::ldexp(mantissa + (1 << width), exponent - bias - width);
}

/// Returns the code nearest to `value`; of two equally near ones, the even one. Codes are ordered
/// by value.
int nearest_code(Fp8Format format, double value) {
  if (!std::isfinite(value)) return kFp8NaN;
  const double size = std::min(std::abs(value), largest_of(format));
  int best = 0;
  for (int code = 1; code < 0x80; ++code) {
    const double here = fp8_value(format, code);
    if (std::isnan(here)) break;
    const double closer = std::abs(here - size) - std::abs(fp8_value(format, best) - size);
    if (closer < 0 || (closer == 0 && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(value) ? 0x80 : 0);
}

/// Returns the largest power of two that keeps the largest finite value within the format.
double scale_for(Fp8Format format, const Values& values) {
  double largest = 0.0;
  for (const double value : values)
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  if (largest == 0.0) return 1.0;
  double scale = 0x1p126;
  while (scale * largest > largest_of(format)) scale /= 2;
  return scale;
}

void check_cast(ExecutionContext& context, Fp8Format format, const Values& values,
                std::int64_t rows, std::int64_t cols, std::int64_t gap = 0) {
  const Tensor x = make_tensor(context, DType::bf16, {rows, cols}, values, gap);
  const double scale = scale_for(format, values);
  for (const ops::Fp8Forms forms : {ops::Fp8Forms{true, true}, {true, false}, {false, true}}) {
    const ops::Fp8Matrix matrix = ops::to_fp8(context, x, format, forms);
    CHECK(matrix.rows.defined() == forms.rows);
    CHECK(matrix.columns.defined() == forms.columns);
    CHECK(numbers_of<float>(matrix.inverse_scale) ==
          std::vector<float>{static_cast<float>(1.0 / scale)});
    std::vector<std::uint8_t> expected(values.size()), transposed(values.size());
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t col = 0; col < cols; ++col) {
        const auto at = static_cast<std::size_t>(row * cols + col);
        expected[at] = static_cast<std::uint8_t>(nearest_code(format, values[at] * scale));
        transposed[static_cast<std::size_t>(col * rows + row)] = expected[at];
      }
    if (forms.rows) CHECK(numbers_of<std::uint8_t>(matrix.rows) == expected);
    if (forms.columns) CHECK(numbers_of<std::uint8_t>(matrix.columns) == transposed);
  }
}

/// Returns the values that an operand's codes stand for, scaled back.
Values said_by(const ops::Fp8Operand& operand) {
  const double inverse = static_cast<double>(numbers_of<float>(operand.inverse_scale)[0]);
  Values values;
  for (const std::uint8_t code : numbers_of<std::uint8_t>(operand.codes))
    values.push_back(fp8_value(operand.format, code) * inverse);
  return values;
}

/// Cases that multiply return if this is true: GPUs older than compute capability 8.9 only cast.
bool skips_fp8_products() {
  if (cuda_module().gpus().value().at(0).compute_capability >= 89) return false;
  std::puts("skipped: this GPU does not multiply FP8");
  return true;
}

}  // namespace

TEST_CASE("FP8: every bf16 value becomes the nearest code of its matrix" *
          doctest::skip(test::no_gpu_is_tested())) {
  ExecutionContext context(1, test::device());
  for (const Fp8Format format : kFp8Formats) {
    CAPTURE(format == Fp8Format::e4m3);
    // All 2^16 values, in groups by magnitude, so that some values of each matrix are in range.
    for (std::uint32_t begin = 0; begin < 0x8000; begin += 0x800) {
      Values values;
      for (std::uint32_t i = 0; i < 0x800; ++i)
        for (const std::uint32_t sign : {0u, 0x8000u}) {
          bf16 value;
          value.bits = static_cast<std::uint16_t>((begin + i) | sign);
          values.push_back(static_cast<double>(static_cast<float>(value)));
        }
      check_cast(context, format, values, 64, 64);
    }
  }
}

TEST_CASE("FP8: casts round to even, saturate at nothing that is finite, and let NaN through" *
          doctest::skip(test::no_gpu_is_tested())) {
  ExecutionContext context(1, test::device());
  for (const Fp8Format format : kFp8Formats) {
    // Values of codes, values half way between them, and values next to those. The largest one
    // makes the scale 1.
    Values values;
    for (int code = 0; code < 0x7e; ++code) {
      const double here = fp8_value(format, code), next = fp8_value(format, code + 1);
      if (std::isnan(next)) break;
      for (const double value : {here, (here + next) / 2, here + (next - here) * 0.375,
                                 here + (next - here) * 0.625, -here, -(here + next) / 2})
        values.push_back(value);
    }
    values.push_back(largest_of(format));
    const auto finite = values.size();
    while (values.size() < 1024) values.push_back(values[values.size() % finite]);
    check_cast(context, format, rounded(DType::bf16, values), 16, 64);
    for (const double odd : {kNaN, std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity()}) {
      values[17] = values[1000] = odd;
      check_cast(context, format, rounded(DType::bf16, values), 16, 64);
    }
    check_cast(context, format, Values(256, 0.0), 16, 16);
    check_cast(context, format, Values(256, kNaN), 16, 16);
    check_cast(context, format, Values(256, 0x1p-126), 16, 16);
    check_cast(context, format, rounded(DType::bf16, Values(256, 3.3e38)), 16, 16);
  }
}

TEST_CASE("FP8: casts of any rows and columns, strided, have the same codes" *
          doctest::skip(test::no_gpu_is_tested())) {
  ExecutionContext context(1, test::device());
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{16, 16}, {48, 80}, {16, 400}, {2320, 16}, {208, 144}})
    for (const std::int64_t gap : {0, 1, 8}) {
      CAPTURE(rows);
      CAPTURE(cols);
      CAPTURE(gap);
      for (const Fp8Format format : kFp8Formats)
        check_cast(context, format, random_values(DType::bf16, 3, rows * cols, 1e-3), rows, cols,
                   gap);
    }
}

TEST_CASE("FP8: delayed scaling goes by the history where there is one, and notes what it sees" *
          doctest::skip(test::no_gpu_is_tested())) {
  ExecutionContext context(1, test::device());
  Values x = random_values(DType::bf16, 1, 80 * 144, 3.0);
  x[77] = -11.5;
  x[78] = kNaN;
  const Tensor tensor = make_tensor(context, DType::bf16, {80, 144}, x);
  const auto numbers = [&](std::int64_t count, std::vector<std::pair<std::size_t, double>> some) {
    Values values(static_cast<std::size_t>(count), 0.0);
    for (const auto& [at, value] : some) values[at] = value;
    return make_tensor(context, DType::f32, {count}, values);
  };
  const ops::Fp8Forms both{.rows = true, .columns = true};
  for (const Fp8Format format : kFp8Formats) {
    const ops::Fp8Matrix plain = ops::to_fp8(context, tensor, format, both);
    // An empty history (all zeros) gives current scaling.
    ops::Fp8Amax amax{numbers(16, {}), numbers(1, {})};
    const ops::Fp8Matrix first = ops::to_fp8(context, tensor, format, both, amax);
    CHECK(numbers_of<std::uint8_t>(first.rows) == numbers_of<std::uint8_t>(plain.rows));
    CHECK(numbers_of<float>(amax.current)[0] == 11.5f);
    // Otherwise the history sets the scale, and larger values saturate.
    amax = {numbers(16, {{3, 1.5}, {15, 2.0}}), numbers(1, {{0, 20.0}})};
    const ops::Fp8Matrix later = ops::to_fp8(context, tensor, format, both, amax);
    const double scale = scale_for(format, {2.0});
    std::vector<std::uint8_t> expected;
    for (const double value : x)
      expected.push_back(static_cast<std::uint8_t>(nearest_code(format, value * scale)));
    CHECK(numbers_of<std::uint8_t>(later.rows) == expected);
    CHECK(numbers_of<float>(later.inverse_scale)[0] == static_cast<float>(1.0 / scale));
    CHECK(numbers_of<float>(amax.current)[0] == 20.0f);  // from an earlier cast
    amax.current = {};
    CHECK(numbers_of<std::uint8_t>(ops::to_fp8(context, tensor, format, both, amax).columns) ==
          numbers_of<std::uint8_t>(later.columns));
  }

  Values steps(3 * 16, 0.0);
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = static_cast<double>(i);
  Tensor history = make_tensor(context, DType::f32, {3, 16}, steps);
  Tensor current = make_tensor(context, DType::f32, {3}, {100.0, 0.0, 300.0});
  ops::roll_fp8_history(context, history, current);
  const Values rolled = values_of(history);
  for (std::size_t row = 0; row < 3; ++row)
    for (std::size_t i = 0; i < 16; ++i)
      CHECK(rolled[row * 16 + i] == (i > 0 ? steps[row * 16 + i - 1]
                                           : (row == 0   ? 100.0
                                              : row == 1 ? 0.0
                                                         : 300.0)));
  CHECK(values_of(current) == Values{0.0, 0.0, 0.0});
}

TEST_CASE("FP8: products are those of what the codes say" *
          doctest::skip(test::no_gpu_is_tested())) {
  if (skips_fp8_products()) return;
  ExecutionContext context(1, test::device());
  for (const auto& [m, n, k] :
       {std::array<std::int64_t, 3>{16, 16, 16}, {48, 80, 112}, {64, 32, 1024}})
    for (const bool with_bias : {false, true}) {
      CAPTURE(m);
      CAPTURE(k);
      CAPTURE(with_bias);
      const Values x = random_values(DType::bf16, 1, m * k, 30.0);
      const Values w = random_values(DType::bf16, 2, n * k, 0.02);
      const Values dy = random_values(DType::bf16, 3, m * n, 1e-5);
      const Values b = with_bias ? random_values(DType::bf16, 4, n) : Values();
      const ops::PackedWeight weight(make_tensor(context, DType::bf16, {n, k}, w));
      const Tensor bias = with_bias ? make_tensor(context, DType::f32, {n}, b) : Tensor();
      const auto cast = [&](const Values& values, std::int64_t cols, Fp8Format format) {
        return ops::to_fp8(context, make_tensor(context, DType::bf16, {m, cols}, values), format,
                           {.rows = true, .columns = true});
      };
      const ops::Fp8Matrix in = cast(x, k, Fp8Format::e4m3), grad = cast(dy, n, Fp8Format::e5m2);
      const ops::Fp8Matrix narrow =
          ops::weight_to_fp8(context, weight, {.rows = true, .columns = true});
      const Values x8 = said_by(in.by_rows()), w8 = said_by(narrow.by_rows()),
                   dy8 = said_by(grad.by_rows());
      const auto before = context.flop();

      Tensor y = context.empty(DType::bf16, {m, n});
      ops::multiply_fp8(context, in.by_rows(), narrow.by_rows(), bias, y);
      CHECK(context.flop() - before == 2 * m * n * k);
      CHECK(relative_error(values_of(y), reference::linear(x8, w8, b, m, n, k)) <= 0x1p-8);

      auto expected = reference::linear_backward(dy8, x8, w8, m, n, k);
      Tensor dx = context.empty(DType::bf16, {m, k});
      ops::multiply_fp8(context, grad.by_rows(), narrow.by_columns(), Tensor(), dx);
      CHECK(relative_error(values_of(dx), expected.dx) <= 0x1p-8);

      const Values dw_before = random_values(DType::f32, 5, n * k, 1e-3);
      Tensor dw = make_tensor(context, DType::f32, {n, k}, dw_before);
      ops::weight_gradient_fp8(context, grad.by_columns(), in.by_columns(), dw);
      for (std::size_t i = 0; i < dw_before.size(); ++i) expected.dw[i] += dw_before[i];
      Tensor replaced = make_tensor(context, DType::f32, {n, k},
                                    Values(static_cast<std::size_t>(n * k), std::nan("")));
      ops::weight_gradient_fp8(context, grad.by_columns(), in.by_columns(), replaced,
                               ops::WriteMode::replace);
      const auto products = reference::linear_backward(dy8, x8, w8, m, n, k);
      CHECK(relative_error(values_of(replaced), products.dw) <=
            (test::on_emulated_gpu() ? 1e-5 : 1e-3));
      // Tensor cores of a real GPU truncate the terms of a sum at the last bit of the largest one:
      // on an H200 the error was 1.4e-4 for 64 terms.
      CHECK(relative_error(values_of(dw), expected.dw) <= (test::on_emulated_gpu() ? 1e-5 : 1e-3));
    }
}

TEST_CASE("FP8: others with the choices of timed products have the same bits" *
          doctest::skip(test::no_gpu_is_tested())) {
  if (skips_fp8_products()) return;
  // Long sums with few results: their last bits show how they were computed.
  const auto results = [](ExecutionContext& context) {
    Values all;
    for (const std::int64_t m : {16, 32, 48}) {
      const std::int64_t n = 32, k = 2048;
      const auto cast = [&](std::uint64_t seed, std::int64_t rows, Fp8Format format) {
        return ops::to_fp8(context,
                           make_tensor(context, DType::bf16, {rows, k},
                                       random_values(DType::bf16, seed, rows * k)),
                           format, {.rows = true, .columns = false});
      };
      for (const auto& [first, second] : {std::pair(Fp8Format::e4m3, Fp8Format::e4m3),
                                          std::pair(Fp8Format::e5m2, Fp8Format::e4m3),
                                          std::pair(Fp8Format::e4m3, Fp8Format::e5m2)}) {
        Tensor y = context.zeros(DType::f32, {m, n});
        ops::weight_gradient_fp8(context, cast(1, m, first).by_rows(), cast(2, n, second).by_rows(),
                                 y);
        const Values values = values_of(y);
        all.insert(all.end(), values.begin(), values.end());
      }
    }
    return all;
  };
  ExecutionContext timed(1, test::device()), same(1, test::device()), usual(1, test::device());
  ops::set_product_options(timed, {.timed = 8});
  const Values chosen = results(timed);
  const std::string choices = ops::product_choices(timed);
  CHECK(ops::count_product_choices(choices) == 9);
  REQUIRE(ops::use_product_choices(same, choices));
  CHECK(results(same) == chosen);
  CHECK(ops::product_choices(same) == choices);
  CHECK(relative_error(results(usual), chosen) <= 1e-5);
}

TEST_CASE("FP8: a weight is cast once until it changes, or each time where none are kept" *
          doctest::skip(test::no_gpu_is_tested())) {
  ExecutionContext context(1, test::device());
  const Tensor plain =
      make_tensor(context, DType::bf16, {32, 48}, random_values(DType::bf16, 1, 1536));
  const ops::PackedWeight weight(plain);
  const ops::Fp8Forms rows{.rows = true, .columns = false};
  const auto now = [&] {
    return numbers_of<std::uint8_t>(ops::weight_to_fp8(context, weight, rows).rows);
  };
  const auto first = now();
  CHECK(weight.packed_bytes() == 2 * 1536 + 4);
  Tensor other = plain;
  const Tensor changed =
      make_tensor(context, DType::bf16, {32, 48}, random_values(DType::bf16, 2, 1536));
  ops::copy(context, changed, other);
  CHECK(now() == first);
  ops::weight_changed(context, weight);
  const auto second = now();
  CHECK(second != first);
  CHECK(second ==
        numbers_of<std::uint8_t>(ops::to_fp8(context, changed, ops::Fp8Format::e4m3, rows).rows));
  context.keep_packed_weights(false);
  const ops::PackedWeight fleeting(changed);
  const ops::Fp8Matrix cast = ops::weight_to_fp8(context, fleeting, rows);
  CHECK(numbers_of<std::uint8_t>(cast.rows) == second);
  CHECK(!cast.columns.defined());
  CHECK(fleeting.packed_bytes() == 0);
}

TEST_CASE("FP8: a NaN or an infinity reaches its row of a product, and no other" *
          doctest::skip(test::no_gpu_is_tested())) {
  if (skips_fp8_products()) return;
  ExecutionContext context(1, test::device());
  for (const double odd : {kNaN, std::numeric_limits<double>::infinity()}) {
    Values x = random_values(DType::bf16, 1, 32 * 16);
    x[5 * 16 + 3] = odd;
    const auto cast = [&](const Values& values) {
      return ops::to_fp8(context, make_tensor(context, DType::bf16, {32, 16}, values),
                         ops::Fp8Format::e4m3, {.rows = true, .columns = false});
    };
    Tensor y = context.empty(DType::bf16, {32, 32});
    ops::multiply_fp8(context, cast(x).by_rows(),
                      cast(random_values(DType::bf16, 2, 32 * 16)).by_rows(), Tensor(), y);
    const Values values = values_of(y);
    for (std::size_t i = 0; i < values.size(); ++i) CHECK(std::isnan(values[i]) == (i / 32 == 5));
  }
}

}  // namespace sortie::trainer
