// Compares norms with the residual addition with the f64 reference.
#include "trainer/ops/norm.h"

#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/reference.h"

namespace sortie::trainer {
namespace {

struct NormSize {
  std::int64_t rows, cols;
};
// Rows for a warp of a GPU, for a block, and wider than a block can hold.
constexpr NormSize kNormSizes[] = {{1, 3},     {1, 768},  {5, 7},    {33, 56},
                                   {200, 130}, {19, 520}, {9, 1032}, {2, 16400}};
constexpr float kEps = 1e-5f;

struct NormRun {
  Values residual, y, dx, dweight, dbias;
};

/// Runs the forward and backward passes. dx overwrites dresidual if there is one.
NormRun run_norm(const Variant& v, ops::NormKind kind, const NormSize& size, const Values& residual,
                 const Values& branch, const Values& weight, const Values& bias, const Values& dy,
                 const Values& dresidual, std::int64_t gap) {
  ExecutionContext& context = v.context;
  const Shape shape{size.rows, size.cols};
  const auto tensor = [&](const Values& values) {
    return values.empty() ? Tensor() : make_tensor(context, v.dtype, shape, values, gap);
  };
  const Tensor x = tensor(residual), added = tensor(branch);
  Tensor sum = added.defined() ? make_tensor(context, v.dtype, shape, {}, gap) : x;
  Tensor y = make_tensor(context, v.dtype, shape, {}, gap);
  Tensor stats = context.empty(DType::f32, {size.rows, 2});
  const Tensor w = make_tensor(context, DType::f32, {size.cols}, weight);
  const Tensor b = bias.empty() ? Tensor() : make_tensor(context, DType::f32, {size.cols}, bias);
  ops::residual_norm_forward(context, kind, x, added, w, b, kEps, sum, y, stats);
  const Tensor direct = tensor(dresidual);
  Tensor dx = direct.defined() ? direct : make_tensor(context, v.dtype, shape, {}, gap);
  Tensor dweight = context.zeros(DType::f32, {size.cols});
  Tensor dbias = bias.empty() ? Tensor() : context.zeros(DType::f32, {size.cols});
  ops::residual_norm_backward(context, kind, tensor(dy), direct, sum, w, stats, dx, dweight, dbias);
  return {values_of(sum), values_of(y), values_of(dx), values_of(dweight),
          dbias.defined() ? values_of(dbias) : Values()};
}

Values plus(Values a, const Values& b) {
  for (std::size_t i = 0; i < b.size(); ++i) a[i] += b[i];
  return a;
}

}  // namespace

TEST_CASE("norms equal the reference forward and backward") {
  for_each_variant(false, [](const Variant& v) {
    for (const ops::NormKind kind : {ops::NormKind::rms, ops::NormKind::layer})
      for (const NormSize& size : kNormSizes)
        for (const bool joined : {false, true}) {
          const bool layer = kind == ops::NormKind::layer;
          CAPTURE(layer);
          CAPTURE(size.rows);
          CAPTURE(size.cols);
          CAPTURE(joined);
          const std::int64_t count = size.rows * size.cols;
          const Values residual = random_values(v.dtype, 1, count);
          const Values branch = joined ? random_values(v.dtype, 2, count) : Values();
          const Values weight = random_values(DType::f32, 3, size.cols);
          const Values bias = layer ? random_values(DType::f32, 4, size.cols) : Values();
          const Values dy = random_values(v.dtype, 5, count);
          const Values direct = joined ? random_values(v.dtype, 6, count) : Values();
          const NormRun run =
              run_norm(v, kind, size, residual, branch, weight, bias, dy, direct, joined ? 3 : 0);
          // The input of the norm is the sum as stored, rounded to the dtype.
          const Values x = rounded(v.dtype, plus(residual, branch));
          CHECK(run.residual == x);
          CHECK(relative_error(run.y,
                               reference::norm(layer, x, weight, bias, static_cast<double>(kEps),
                                               size.rows, size.cols)) <= v.tolerance);
          const auto g = reference::norm_backward(layer, dy, x, weight, static_cast<double>(kEps),
                                                  size.rows, size.cols);
          CHECK(relative_error(run.dx, plus(g.dx, direct)) <= v.tolerance);
          CHECK(relative_error(run.dweight, g.dweight) <= 1e-4);
          if (layer) CHECK(relative_error(run.dbias, g.dbias) <= 1e-5);
        }
  });
}

TEST_CASE("norm gradients of the weights are added to what is there") {
  ExecutionContext context(1, test::device());
  const Tensor x = make_tensor(context, DType::f32, {2, 4}, random_values(1, 8));
  const Tensor weight = make_tensor(context, DType::f32, {4}, {1, 1, 1, 1});
  Tensor y = context.empty(DType::f32, {2, 4}), stats = context.empty(DType::f32, {2, 2});
  Tensor same = x, dx = context.empty(DType::f32, {2, 4});
  ops::residual_norm_forward(context, ops::NormKind::layer, x, {}, weight, weight, kEps, same, y,
                             stats);
  Tensor once = context.zeros(DType::f32, {4}), dbias = context.zeros(DType::f32, {4});
  Tensor twice = context.zeros(DType::f32, {4}), dbias2 = context.zeros(DType::f32, {4});
  const auto backward = [&](Tensor& dw, Tensor& db) {
    ops::residual_norm_backward(context, ops::NormKind::layer, y, {}, x, weight, stats, dx, dw, db);
  };
  backward(once, dbias);
  backward(twice, dbias2);
  backward(twice, dbias2);
  const Values weights = values_of(once), biases = values_of(dbias);
  CHECK(values_of(twice) == plus(weights, weights));
  CHECK(values_of(dbias2) == plus(biases, biases));
}

TEST_CASE("a NaN or Inf stays in its row of a norm and reaches the weight gradient") {
  for_each_variant(false, [](const Variant& v) {
    for (const double bad : {kNaN, std::numeric_limits<double>::infinity()})
      for (const ops::NormKind kind : {ops::NormKind::rms, ops::NormKind::layer}) {
        const NormSize size{3, 20};
        Values x = random_values(v.dtype, 1, 60);
        x[25] = bad;
        const Values weight = random_values(DType::f32, 2, 20);
        const NormRun run =
            run_norm(v, kind, size, x, {}, weight, {}, random_values(v.dtype, 3, 60), {}, 0);
        const auto row = [](const Values& values, int r) {
          return Values(values.begin() + r * 20, values.begin() + (r + 1) * 20);
        };
        CHECK(all_finite(row(run.y, 0)));
        CHECK_FALSE(all_finite(row(run.y, 1)));
        CHECK_FALSE(all_finite(row(run.dx, 1)));
        CHECK(all_finite(row(run.dx, 2)));
        CHECK_FALSE(all_finite(run.dweight));
      }
  });
}

TEST_CASE("norms have the same bits wherever their rows lie") {
  for_each_variant(false, [](const Variant& v) {
    for (const NormSize& size : {NormSize{21, 64}, NormSize{3, 1280}}) {
      CAPTURE(size.cols);
      const std::int64_t count = size.rows * size.cols;
      const auto run = [&](std::int64_t gap) {
        return run_norm(v, ops::NormKind::layer, size, random_values(v.dtype, 1, count),
                        random_values(v.dtype, 2, count), random_values(DType::f32, 3, size.cols),
                        random_values(DType::f32, 4, size.cols), random_values(v.dtype, 5, count),
                        random_values(v.dtype, 6, count), gap);
      };
      const NormRun dense = run(0);
      for (const std::int64_t gap : {8, 3}) {
        const NormRun strided = run(gap);
        CHECK(strided.y == dense.y);
        CHECK(strided.dx == dense.dx);
        CHECK(strided.dweight == dense.dweight);
        CHECK(strided.dbias == dense.dbias);
      }
    }
  });
}

TEST_CASE("norms have the same bits on any number of threads") {
  for (const DType dtype : {DType::f32, DType::bf16})
    check_same_bits(kAnyThreads, [&](ExecutionContext& context) {
      const NormSize size{300, 70};
      const NormRun run = run_norm(
          {context, dtype, 0.0}, ops::NormKind::layer, size, random_values(dtype, 1, 300 * 70),
          random_values(dtype, 2, 300 * 70), random_values(DType::f32, 3, 70),
          random_values(DType::f32, 4, 70), random_values(dtype, 5, 300 * 70), {}, 0);
      Values all = run.y;
      for (const Values* more : {&run.dx, &run.dweight, &run.dbias})
        all.insert(all.end(), more->begin(), more->end());
      return all;
    });
}

}  // namespace sortie::trainer
