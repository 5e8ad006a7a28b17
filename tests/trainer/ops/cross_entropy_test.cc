// Compares the LM head with cross-entropy with the f64 reference.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/reference.h"
#include "trainer/ops/linear.h"
#include "trainer/ops/products.h"

namespace sortie::trainer {
namespace {

struct RowCase {
  std::int64_t m, n, k, vocab;
  double range;  // of h and w; sets how far apart the logits are
};
// More than one tile of the vocabulary, more than one chunk of rows, padded columns, one row.
constexpr RowCase kRowCases[] = {{1, 11, 8, 11, 1.0},
                                 {17, 50, 16, 47, 3.0},
                                 {40, 2111, 24, 2050, 1.0},
                                 {9, 1984, 8, 1984, 1.0},
                                 {1100, 70, 8, 64, 1.0}};

struct RowInputs {
  Values h, w;
  std::vector<std::int32_t> targets;
  Tensor targets_tensor(ExecutionContext& context) const {
    return ops::tensor_from_host<std::int32_t>(context, targets,
                                               {static_cast<std::int64_t>(targets.size())});
  }
};

/// Returns random inputs. Every third target is -100; the others are spread over the vocabulary and
/// include its last column.
RowInputs make_inputs(DType dtype, const RowCase& c) {
  RowInputs in{
      random_values(dtype, 1, c.m * c.k, c.range), random_values(dtype, 2, c.n * c.k, c.range), {}};
  for (std::int64_t i = 0; i < c.m; ++i)
    in.targets.push_back(
        c.m > 1 && i % 3 == 1 ? -100 : static_cast<std::int32_t>(c.vocab - 1 - i * 131 % c.vocab));
  return in;
}

/// Runs the op with a new loss tensor and returns the loss.
ops::CrossEntropyResult cross_entropy(ExecutionContext& context, const Tensor& h,
                                      const ops::PackedWeight& w, const Tensor& targets,
                                      std::int64_t vocab_size, float grad_scale, Tensor dh,
                                      Tensor dw, ops::WriteMode mode_of_dw = ops::WriteMode::add) {
  Tensor loss = context.zeros(DType::f64, {2});
  ops::CrossEntropySpec spec{.vocab_size = vocab_size, .grad_scale = grad_scale};
  spec.mode_of_dw = mode_of_dw;
  ops::linear_cross_entropy(context, h, w, targets, spec, dh, dw, loss);
  return ops::read_cross_entropy(context, loss);
}

}  // namespace

TEST_CASE("parts of the vocabulary give the loss and gradients of the whole") {
  for_each_variant(true, [](const Variant& v) {
    // Parts of one and of several tiles. The last parts have few columns or only padding.
    for (const RowCase& c : {RowCase{17, 50, 16, 26, 3.0}, RowCase{40, 2 * 2055, 24, 4000, 1.0},
                             RowCase{6, 2 * 2200, 8, 4201, 1.0}})
      for (const std::int64_t parts : {2, 5}) {
        if (c.n % parts != 0) continue;
        CAPTURE(c.vocab);
        CAPTURE(parts);
        const RowInputs in = make_inputs(v.dtype, c);
        const double scale = 0.25;
        const auto expected =
            reference::cross_entropy(in.h, in.w, in.targets, c.m, c.n, c.k, c.vocab, scale);
        const Tensor h = make_tensor(v.context, v.dtype, {c.m, c.k}, in.h, 8);
        const Tensor targets = in.targets_tensor(v.context);
        const std::int64_t rows = c.n / parts;
        const auto of_part = [&](const Values& all, std::int64_t part) {
          return Values(all.begin() + part * rows * c.k, all.begin() + (part + 1) * rows * c.k);
        };
        const auto spec_of = [&](std::int64_t part) {
          return ops::CrossEntropySpec{.vocab_size = c.vocab,
                                       .grad_scale = static_cast<float>(scale),
                                       .first_token = part * rows};
        };
        for (const bool with_gradients : {true, false}) {
          std::vector<double> stats;
          std::vector<std::unique_ptr<ops::PackedWeight>> weights;
          std::vector<ops::CrossEntropyPart> begun;
          for (std::int64_t part = 0; part < parts; ++part) {
            weights.push_back(std::make_unique<ops::PackedWeight>(
                make_tensor(v.context, v.dtype, {rows, c.k}, of_part(in.w, part))));
            begun.push_back(ops::begin_cross_entropy(v.context, h, *weights.back(), targets,
                                                     spec_of(part), with_gradients));
            const auto own = numbers_of<double>(begun.back().stats);
            stats.insert(stats.end(), own.begin(), own.end());
          }
          const Tensor all = ops::tensor_from_host<double>(v.context, stats, {parts, c.m, 3});
          Values dh_sum(static_cast<std::size_t>(c.m * c.k), 0.0), dw_all;
          for (std::int64_t part = 0; part < parts; ++part) {
            Tensor loss = v.context.zeros(DType::f64, {2}), dh, dw;
            if (with_gradients) {
              dh = make_tensor(v.context, v.dtype, {c.m, c.k}, {}, 8);
              dw = v.context.zeros(DType::f32, {rows, c.k});
            }
            const auto index = static_cast<std::size_t>(part);
            ops::finish_cross_entropy(v.context, h, *weights[index], targets, spec_of(part),
                                      begun[index], all, dh, dw, loss);
            const auto result = ops::read_cross_entropy(v.context, loss);
            CHECK(result.count == expected.count);
            CHECK(std::abs(result.loss_sum / expected.loss - 1.0) <= 1e-5);
            if (!with_gradients) continue;
            const Values dh_part = values_of(dh), dw_part = values_of(dw);
            for (std::size_t i = 0; i < dh_sum.size(); ++i) dh_sum[i] += dh_part[i];
            dw_all.insert(dw_all.end(), dw_part.begin(), dw_part.end());
          }
          if (!with_gradients) continue;
          CHECK(relative_error(dh_sum, expected.dh) <= v.tolerance);
          CHECK(relative_error(dw_all, expected.dw) <= v.tolerance);
        }
      }
  });
}

TEST_CASE("loss and gradients equal the reference") {
  for_each_variant(true, [](const Variant& v) {
    for (const RowCase& c : kRowCases) {
      CAPTURE(c.m);
      CAPTURE(c.vocab);
      const RowInputs in = make_inputs(v.dtype, c);
      const double scale = 0.25;
      auto expected =
          reference::cross_entropy(in.h, in.w, in.targets, c.m, c.n, c.k, c.vocab, scale);
      const ops::PackedWeight weight(make_tensor(v.context, v.dtype, {c.n, c.k}, in.w));
      const Tensor h = make_tensor(v.context, v.dtype, {c.m, c.k}, in.h, 8);
      const Tensor targets = in.targets_tensor(v.context);
      Tensor dh = make_tensor(v.context, v.dtype, {c.m, c.k}, {}, 8);
      const Values before = random_values(DType::f32, 3, c.n * c.k);
      Tensor dw = make_tensor(v.context, DType::f32, {c.n, c.k}, before);
      const auto result =
          cross_entropy(v.context, h, weight, targets, c.vocab, static_cast<float>(scale), dh, dw);
      CHECK(result.count == expected.count);
      // Logits are f32 sums of exact products, in bf16 too, so the loss does not depend on the
      // dtype.
      CHECK(std::abs(result.loss_sum / expected.loss - 1.0) <= 1e-5);
      CHECK(relative_error(values_of(dh), expected.dh) <= v.tolerance);
      Values added = values_of(dw);
      for (std::size_t i = 0; i < added.size(); ++i) added[i] -= before[i];
      CHECK(relative_error(added, expected.dw) <= v.tolerance);

      // Old values, NaN included, are replaced. Rows of padding are 0 before.
      Values old(before.size());
      std::fill_n(old.begin(), c.vocab * c.k, std::nan(""));
      Tensor replaced = make_tensor(v.context, DType::f32, {c.n, c.k}, old);
      cross_entropy(v.context, h, weight, targets, c.vocab, static_cast<float>(scale), dh, replaced,
                    ops::WriteMode::replace);
      CHECK(relative_error(values_of(replaced), expected.dw) <= v.tolerance);

      const auto loss_only =
          cross_entropy(v.context, h, weight, targets, c.vocab, static_cast<float>(scale), {}, {});
      CHECK(loss_only.loss_sum == result.loss_sum);
      CHECK(loss_only.count == result.count);
    }
  });
}

TEST_CASE("the loss and its gradients do not depend on how many rows are computed at a time") {
  CHECK(ops::head_chunk_rows({}, 8192, 50304, 0) == 2048);   // 4 chunks of 393 MiB
  CHECK(ops::head_chunk_rows({}, 8192, 128256, 0) == 1024);  // 501 MiB
  // Twice the gradient of 151936 x 896 is 1039 MiB.
  CHECK(ops::head_chunk_rows({}, 16384, 151936, 151936 * 896) == 1664);
  CHECK(ops::head_chunk_rows({}, 1000, 50304, 50304 * 4096) == 1000);
  // Twice the gradient of 128256 x 4096 is 4008 MiB, which is over the upper limit. Logits of 3072
  // rows have 1503 MiB; 8192 rows are then divided into 3 even chunks.
  CHECK(ops::head_chunk_rows({}, 8192, 128256, 128256 * 4096) == 2816);
  CHECK(ops::head_chunk_rows({.least_logits_bytes = 1, .most_logits_bytes = 1}, 600, 100, 0) ==
        256);
  for_each_variant(true, [](const Variant& v) {
    const RowCase c{600, 70, 8, 67, 1.0};
    const RowInputs in = make_inputs(v.dtype, c);
    const auto expected =
        reference::cross_entropy(in.h, in.w, in.targets, c.m, c.n, c.k, c.vocab, 1.0);
    const ops::PackedWeight weight(make_tensor(v.context, v.dtype, {c.n, c.k}, in.w));
    ops::set_product_options(v.context, {.least_logits_bytes = 1, .most_logits_bytes = 1});
    Tensor dh = v.context.empty(v.dtype, {c.m, c.k}), dw = v.context.zeros(DType::f32, {c.n, c.k});
    const auto result = cross_entropy(v.context, make_tensor(v.context, v.dtype, {c.m, c.k}, in.h),
                                      weight, in.targets_tensor(v.context), c.vocab, 1.0f, dh, dw);
    CHECK(std::abs(result.loss_sum / expected.loss - 1.0) <= 1e-5);
    CHECK(relative_error(values_of(dh), expected.dh) <= v.tolerance);
    CHECK(relative_error(values_of(dw), expected.dw) <= v.tolerance);
  });
}

TEST_CASE("padded rows of the weight are not touched, whatever they hold") {
  for_each_variant(true, [](const Variant& v) {
    const RowCase c{6, 40, 8, 33, 1.0};
    RowInputs in = make_inputs(v.dtype, c);
    std::fill(in.w.begin() + 33 * 8, in.w.end(), kNaN);
    const ops::PackedWeight weight(make_tensor(v.context, v.dtype, {c.n, c.k}, in.w));
    Tensor dh = v.context.empty(v.dtype, {c.m, c.k}), dw = v.context.zeros(DType::f32, {c.n, c.k});
    const auto result = cross_entropy(v.context, make_tensor(v.context, v.dtype, {c.m, c.k}, in.h),
                                      weight, in.targets_tensor(v.context), c.vocab, 1.0f, dh, dw);
    CHECK(std::isfinite(result.loss_sum));
    CHECK(all_finite(values_of(dh)));
    CHECK(values_of(dw.slice(0, 33, 7)) == Values(7 * 8, 0.0));
  });
}

TEST_CASE("far apart logits neither overflow nor lose the loss") {
  for_each_variant(true, [](const Variant& v) {
    const RowCase c{2, 3, 1, 3, 1.0};
    const ops::PackedWeight weight(make_tensor(v.context, v.dtype, {3, 1}, {200.0, -200.0, 0.0}));
    RowInputs in{{1.0, 1.0}, {}, {0, 1}};
    Tensor dh = v.context.empty(v.dtype, {2, 1}), dw = v.context.zeros(DType::f32, {3, 1});
    const auto result = cross_entropy(v.context, make_tensor(v.context, v.dtype, {2, 1}, in.h),
                                      weight, in.targets_tensor(v.context), c.vocab, 1.0f, dh, dw);
    CHECK(result.loss_sum == doctest::Approx(400.0));
    CHECK(values_of(dw) == Values{1.0, -1.0, 0.0});
    CHECK(values_of(dh) == Values{0.0, 400.0});
  });
}

TEST_CASE("a NaN or Inf in a counted row makes loss and gradients non-finite") {
  for_each_variant(true, [](const Variant& v) {
    const RowCase c{7, 2111, 8, 2100, 1.0};
    for (const double bad : {kNaN, std::numeric_limits<double>::infinity()}) {
      CAPTURE(bad);
      RowInputs in = make_inputs(v.dtype, c);
      in.h[3 * 8 + 2] = bad;  // row 3 has a target
      const ops::PackedWeight weight(make_tensor(v.context, v.dtype, {c.n, c.k}, in.w));
      Tensor dh = v.context.empty(v.dtype, {c.m, c.k}),
             dw = v.context.zeros(DType::f32, {c.n, c.k});
      const auto result =
          cross_entropy(v.context, make_tensor(v.context, v.dtype, {c.m, c.k}, in.h), weight,
                        in.targets_tensor(v.context), c.vocab, 1.0f, dh, dw);
      CHECK_FALSE(std::isfinite(result.loss_sum));
      CHECK_FALSE(all_finite(values_of(dh.slice(0, 3, 1))));
      CHECK_FALSE(all_finite(values_of(dw)));
      CHECK(all_finite(values_of(dh.slice(0, 4, 3))));
    }
  });
}

TEST_CASE("a target outside of the vocabulary makes a GPU's loss and gradients NaN" *
          doctest::skip(std::getenv("SORTIE_CUDA_MODULE") == nullptr)) {
  for_each_variant(true, [](const Variant& v) {
    const RowCase c{7, 40, 8, 33, 1.0};
    RowInputs in = make_inputs(v.dtype, c);
    in.targets[3] = 33;
    const ops::PackedWeight weight(make_tensor(v.context, v.dtype, {c.n, c.k}, in.w));
    Tensor dh = v.context.empty(v.dtype, {c.m, c.k}), dw = v.context.zeros(DType::f32, {c.n, c.k});
    const auto result = cross_entropy(v.context, make_tensor(v.context, v.dtype, {c.m, c.k}, in.h),
                                      weight, in.targets_tensor(v.context), c.vocab, 1.0f, dh, dw);
    CHECK(std::isnan(result.loss_sum));
    CHECK_FALSE(all_finite(values_of(dh.slice(0, 3, 1))));
    CHECK(all_finite(values_of(dh.slice(0, 4, 3))));
  });
}

TEST_CASE("the loss and its gradients have the same bits on any number of threads") {
  for (const DType dtype : product_dtypes()) {
    check_same_bits(product_threads(), [&](ExecutionContext& context) {
      const RowCase c{150, 2111, 40, 2100, 1.0};
      const RowInputs in = make_inputs(dtype, c);
      const ops::PackedWeight weight(make_tensor(context, dtype, {c.n, c.k}, in.w));
      Tensor dh = context.empty(dtype, {c.m, c.k}), dw = context.zeros(DType::f32, {c.n, c.k});
      const auto result = cross_entropy(context, make_tensor(context, dtype, {c.m, c.k}, in.h),
                                        weight, in.targets_tensor(context), c.vocab, 1.0f, dh, dw);
      Values all = values_of(dh);
      const Values more = values_of(dw);
      all.insert(all.end(), more.begin(), more.end());
      all.push_back(result.loss_sum);
      return all;
    });
  }
}

TEST_CASE("a loss is added to what was there, times its scale") {
  ExecutionContext context(1, test::device());
  const RowCase c{6, 12, 8, 12, 1.0};
  const RowInputs in = make_inputs(DType::f32, c);
  const ops::PackedWeight weight(make_tensor(context, DType::f32, {c.n, c.k}, in.w));
  const Tensor h = make_tensor(context, DType::f32, {c.m, c.k}, in.h);
  const Tensor targets = in.targets_tensor(context);
  const auto once = cross_entropy(context, h, weight, targets, c.vocab, 1.0f, {}, {});
  Tensor loss = context.zeros(DType::f64, {2}), none;
  for (int i = 0; i < 2; ++i)
    ops::linear_cross_entropy(context, h, weight, targets,
                              {.vocab_size = c.vocab, .grad_scale = 1.0f, .loss_scale = 0.25}, none,
                              none, loss);
  const auto twice = ops::read_cross_entropy(context, loss);
  CHECK(twice.loss_sum == 0.25 * once.loss_sum + 0.25 * once.loss_sum);
  CHECK(twice.count == 2 * once.count);
}

}  // namespace sortie::trainer
