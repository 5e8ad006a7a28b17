// Tests of the choices of how products are computed, and of their text form.
#include "trainer/ops/products.h"

#include <cstdlib>

#include "tests/support/emulated.h"
#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/reference.h"
#include "trainer/ops/linear.h"

namespace sortie::trainer {
namespace {

/// Returns products of several shapes with long sums, whose last bits show how they were computed.
Values products_of(ExecutionContext& context) {
  Values all;
  for (const DType dtype : product_dtypes())
    for (const std::int64_t m : {3, 8, 20, 33}) {
      const std::int64_t n = 24, k = 700;
      const ops::PackedWeight weight(
          make_tensor(context, dtype, {n, k}, random_values(dtype, 1, n * k)));
      const Tensor x = make_tensor(context, dtype, {m, k}, random_values(dtype, 2, m * k));
      Tensor y = context.empty(DType::f32, {m, n}), none;
      Tensor dw = make_tensor(context, DType::f32, {n, k}, random_values(DType::f32, 3, n * k));
      ops::linear_forward(context, x, weight, Tensor(), y);
      ops::linear_backward_weight(context, x.slice(1, 0, n), x, dw, none);
      for (const Tensor& result : {y, dw}) {
        const Values values = values_of(result);
        all.insert(all.end(), values.begin(), values.end());
      }
    }
  return all;
}

}  // namespace

TEST_CASE("timed products are right, and others with their choices have the same bits") {
  ExecutionContext usual(1, test::device()), timed(1, test::device()), same(1, test::device());
  const Values expected = products_of(usual);
  ops::set_product_options(timed, {.timed = 8});
  const Values results = products_of(timed);
  CHECK(relative_error(results, expected) <= 1e-5);
  const std::string choices = ops::product_choices(timed);
  REQUIRE(ops::use_product_choices(same, choices));
  CHECK(products_of(same) == results);
  CHECK(ops::product_choices(same) == choices);
  CHECK(products_of(timed) == results);
}

namespace {

/// Returns gradients of weights and biases of several shapes, both added and replaced.
Values gradients_of(ExecutionContext& context) {
  Values all;
  const auto keep = [&](const Tensor& result) {
    const Values values = values_of(result);
    all.insert(all.end(), values.begin(), values.end());
  };
  for (const DType dtype : product_dtypes())
    for (const std::int64_t rows : {40, 300})
      for (const std::int64_t n : {8, 9, 24, 40})
        for (const auto mode : {ops::WriteMode::add, ops::WriteMode::replace}) {
          const std::int64_t k = 16;
          const Tensor dy =
              make_tensor(context, dtype, {rows, n}, random_values(dtype, 1, rows * n));
          const Tensor x =
              make_tensor(context, dtype, {rows, k}, random_values(dtype, 2, rows * k));
          const Values before = mode == ops::WriteMode::replace
                                    ? Values(static_cast<std::size_t>(n * k), kNaN)
                                    : random_values(DType::f32, 3, n * k);
          Tensor dw = make_tensor(context, DType::f32, {n, k}, before);
          Tensor dbias = make_tensor(context, DType::f32, {n}, random_values(DType::f32, 4, n));
          ops::linear_backward_weight(context, dy, x, dw, dbias, mode);
          keep(dw);
          keep(dbias);
        }
  return all;
}

std::int64_t count_of(const std::string& text, const std::string& what) {
  std::int64_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
    ++count;
  return count;
}

}  // namespace

TEST_CASE("gradients of biases come with the product or apart, whatever was faster" *
          doctest::skip(std::getenv("SORTIE_CUDA_MODULE") == nullptr)) {
  ExecutionContext usual(1, test::device()), timed(1, test::device()), same(1, test::device());
  const Values expected = gradients_of(usual);
  const auto shapes = static_cast<std::int64_t>(product_dtypes().size() * 2 * 4 * 2);
  CHECK(count_of(ops::product_choices(usual), ": apart\n") == shapes);  // nothing was timed
  ops::set_product_options(timed, {.timed = 8, .dropped = true});
  (void)gradients_of(timed);
  ops::set_product_options(timed, {});
  const std::string choices = ops::product_choices(timed);
  if (test::gpu_is_emulated()) {  // a real GPU may choose the same for all
    CHECK(count_of(choices, ": apart\n") > 0);
    CHECK(count_of(choices, ": apart\n") < shapes);
  }
  const Values results = gradients_of(timed);
  CHECK(relative_error(results, expected) <= 1e-5);
  REQUIRE(ops::use_product_choices(same, choices));
  CHECK(gradients_of(same) == results);
  CHECK(ops::product_choices(same) == choices);
}

TEST_CASE("products of two streams do not share what they work in") {
  // Long sums with few results, which are split.
  const std::int64_t m = 4, n = 4, k = 1000;
  ExecutionContext context(1, test::device());
  const Values first = random_values(DType::f32, 1, m * k), second(first.rbegin(), first.rend());
  const Values w = random_values(DType::f32, 3, n * k);
  const ops::PackedWeight weight(make_tensor(context, DType::f32, {n, k}, w));
  const Tensor x = make_tensor(context, DType::f32, {m, k}, first);
  const Tensor other_x = make_tensor(context, DType::f32, {m, k}, second);
  const auto expected = reference::linear(first, w, {}, m, n, k);
  const auto other_expected = reference::linear(second, w, {}, m, n, k);
  for (int round = 0; round < 20; ++round) {
    Tensor y = context.empty(DType::f32, {m, n}), other_y = context.empty(DType::f32, {m, n});
    {
      const auto scope = context.with_stream(StreamKind::communication);
      ops::linear_forward(context, other_x, weight, Tensor(), other_y);
    }
    ops::linear_forward(context, x, weight, Tensor(), y);
    context.synchronize();
    CHECK(relative_error(values_of(y), expected) <= 1e-5);
    CHECK(relative_error(values_of(other_y), other_expected) <= 1e-5);
  }
}

TEST_CASE("choices of another library and broken ones are refused" *
          doctest::skip(std::getenv("SORTIE_CUDA_MODULE") == nullptr)) {
  ExecutionContext context(1, test::device());
  (void)products_of(context);
  const std::string choices = ops::product_choices(context);
  const auto with = [&](const std::string& what, const std::string& instead) {
    std::string text = choices;
    REQUIRE(text.find(what) != std::string::npos);
    return text.replace(text.find(what), what.size(), instead);
  };
  const auto code = [&](const std::string& text) {
    const auto result = ops::use_product_choices(context, text);
    return result ? ErrorCode::internal : result.error().code;
  };
  CHECK(code(with("cuBLASLt ", "cuBLASLt 9")) == ErrorCode::unsupported);
  CHECK(code(with("multiprocessors", "multiprocessors and more")) == ErrorCode::unsupported);
  CHECK(code("something else\n") == ErrorCode::checkpoint);
  CHECK(code(choices + "1 2 3\n") == ErrorCode::checkpoint);
  CHECK(code(choices.substr(0, choices.size() - 3) + "z\n") == ErrorCode::checkpoint);
  CHECK(ops::use_product_choices(context, choices));
  CHECK(ops::use_product_choices(context, ""));
}

TEST_CASE("f32 products are not those of TF32 unless it is asked for" *
          doctest::skip(std::getenv("SORTIE_CUDA_MODULE") == nullptr)) {
  const Values x = random_values(DType::f32, 1, 20 * 64), w = random_values(DType::f32, 2, 8 * 64);
  const auto product = [&](bool tf32) {
    ExecutionContext context(1, test::device());
    ops::set_product_options(context, {.tf32 = tf32});
    const ops::PackedWeight weight(make_tensor(context, DType::f32, {8, 64}, w));
    Tensor y = context.empty(DType::f32, {20, 8});
    ops::linear_forward(context, make_tensor(context, DType::f32, {20, 64}, x), weight, Tensor(),
                        y);
    return values_of(y);
  };
  const double error = relative_error(product(true), product(false));
  CHECK(error > 1e-5);
  CHECK(error < 1e-2);
}

}  // namespace sortie::trainer
