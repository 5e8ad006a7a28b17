// Compares sorting by expert, grouped products and the weighted combination with the f64 reference.
#include "trainer/ops/moe_experts.h"
#include "trainer/ops/copy.h"

#include <algorithm>
#include <set>

#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/reference_moe.h"

namespace sortie::trainer {
namespace {

using Choices = std::vector<std::int32_t>;

struct ExpertsSize {
  std::int64_t tokens, top_k, experts, out, in;
};
// One token, experts without any token, all tokens with one expert, more than 256 rows of one
// expert, more than 256 outputs, odd widths, widths that are multiples of 16 bytes and of nothing
// larger, few rows and many.
constexpr ExpertsSize kExpertsSizes[] = {
    {1, 1, 3, 5, 7},    {1, 4, 4, 16, 8},     {37, 2, 16, 33, 56},  {60, 2, 5, 24, 40},
    {90, 1, 1, 24, 16}, {400, 2, 3, 300, 24}, {300, 2, 3, 136, 72},
};
/// Returns the number of columns on each side of a view. Rows stay aligned if their width allows
/// it.
std::int64_t gap_of(const ExpertsSize& s) {
  return s.out % 8 == 0 && s.in % 8 == 0 ? 8 : 3;
}

/// Returns k different experts per token, without expert 1 if that is possible.
Choices make_choices(const ExpertsSize& s) {
  Choices chosen;
  const Values draws = random_values(7, s.tokens * 64);
  std::size_t draw = 0;
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    std::set<std::int32_t> row;
    while (static_cast<std::int64_t>(row.size()) < s.top_k) {
      draw = (draw + 1) % draws.size();
      const auto e =
          static_cast<std::int32_t>((draws[draw] + 1) / 2 * 0.999 * static_cast<double>(s.experts));
      if (e == 1 && s.top_k < s.experts && s.experts > 1) continue;
      if (row.insert(e).second) chosen.push_back(e);
    }
  }
  return chosen;
}

Tensor make_choice_tensor(ExecutionContext& context, const ExpertsSize& s, const Choices& chosen) {
  return ops::tensor_from_host<std::int32_t>(context, chosen, {s.tokens, s.top_k});
}

struct Inputs {
  Choices chosen;
  Values x, w, weights, dy;
  std::int64_t most = ops::kEveryChoice;  // else the number of choices that are not -1
};
Inputs make_inputs(DType dtype, const ExpertsSize& s) {
  return {make_choices(s),
          random_values(dtype, 1, s.tokens * s.in),
          random_values(dtype, 2, s.experts * s.out * s.in),
          random_values(DType::f32, 3, s.tokens * s.top_k),
          random_values(dtype, 4, s.tokens * s.out),
          ops::kEveryChoice};
}

struct Run {
  Values y, dx, dw, dweights;
};
/// Runs the forward and backward passes of dispatch, one grouped product and combine; dw starts at
/// `dw_start`.
Run run_mixture(ExecutionContext& context, DType dtype, const ExpertsSize& s, const Inputs& in,
                double dw_start, std::int64_t gap) {
  const auto rows = ops::sort_by_expert(context, make_choice_tensor(context, s, in.chosen),
                                        s.experts, ops::kExpertRowUnit, in.most);
  REQUIRE(ops::read_scalar<std::int64_t>(context, rows.row_count()) <= rows.capacity);
  std::vector<ops::PackedWeight> packed;
  std::vector<const ops::PackedWeight*> weights;
  std::vector<Tensor> dw;
  const std::int64_t each = s.out * s.in;
  for (std::int64_t e = 0; e < s.experts; ++e) {
    packed.emplace_back(
        make_tensor(context, dtype, {s.out, s.in},
                    Values(in.w.begin() + e * each, in.w.begin() + (e + 1) * each)));
    dw.push_back(make_tensor(context, DType::f32, {s.out, s.in},
                             Values(static_cast<std::size_t>(each), dw_start)));
  }
  for (const auto& weight : packed) weights.push_back(&weight);
  const Tensor x = make_tensor(context, dtype, {s.tokens, s.in}, in.x, gap);
  const Tensor gates = make_tensor(context, DType::f32, {s.tokens, s.top_k}, in.weights);
  const Tensor dy = make_tensor(context, dtype, {s.tokens, s.out}, in.dy, gap);
  const auto sorted = [&](std::int64_t cols) {
    return make_tensor(context, dtype, {rows.capacity, cols}, {}, gap);
  };
  Tensor xs = sorted(s.in), ys = sorted(s.out), dys = sorted(s.out), dxs = sorted(s.in);
  Tensor y = make_tensor(context, dtype, {s.tokens, s.out}, {}, gap);
  Tensor dx = make_tensor(context, dtype, {s.tokens, s.in}, {}, gap);
  Tensor dgates = make_tensor(context, DType::f32, {s.tokens, s.top_k},
                              Values(static_cast<std::size_t>(s.tokens * s.top_k), 7.0));
  ops::dispatch_forward(context, rows, x, xs);
  ops::grouped_linear_forward(context, rows, xs, weights, ys);
  ops::combine_forward(context, rows, ys, gates, y);
  ops::combine_backward(context, rows, dy, ys, gates, dys, dgates);
  ops::grouped_linear_backward_data(context, rows, dys, weights, dxs);
  ops::grouped_linear_backward_weight(context, rows, dys, xs, dw);
  ops::dispatch_backward(context, rows, dxs, dx);
  Run run{values_of(y), values_of(dx), {}, values_of(dgates)};
  for (const Tensor& gradient : dw) {
    const Values values = values_of(gradient);
    run.dw.insert(run.dw.end(), values.begin(), values.end());
  }
  return run;
}

}  // namespace

TEST_CASE("a mixture equals the reference forward and backward") {
  for_each_variant(true, [](const Variant& v) {
    for (const ExpertsSize& s : kExpertsSizes) {
      CAPTURE(s.tokens);
      CAPTURE(s.experts);
      const Inputs in = make_inputs(v.dtype, s);
      const Run run = run_mixture(v.context, v.dtype, s, in, 0.5, gap_of(s));
      CHECK(relative_error(run.y, reference::mixture(in.x, in.w, in.chosen, in.weights, s.tokens,
                                                     s.top_k, s.out, s.in)) <= v.tolerance);
      auto g = reference::mixture_backward(in.dy, in.x, in.w, in.chosen, in.weights, s.tokens,
                                           s.top_k, s.out, s.in);
      // Gradients of rows are rounded more than once, hence twice the tolerance.
      CHECK(relative_error(run.dx, g.dx) <= 2 * v.tolerance);
      for (double& value : g.dw) value += 0.5;
      CHECK(relative_error(run.dw, g.dw) <= 2 * v.tolerance);
      CHECK(relative_error(run.dweights, g.dweights) <= 2 * v.tolerance);
    }
  });
}

namespace {

/// Drops every third choice, all choices of the second token and, with more than three experts, all
/// choices of the first expert.
std::vector<bool> drops_of(const ExpertsSize& s, const Choices& chosen) {
  std::vector<bool> drops(chosen.size());
  for (std::size_t i = 0; i < chosen.size(); ++i)
    drops[i] = i % 3 == 2 || static_cast<std::int64_t>(i) / s.top_k == 1 ||
               (s.experts > 3 && chosen[i] == 0);
  return drops;
}

}  // namespace

TEST_CASE("dropped choices have no row, add nothing and get no gradient") {
  for_each_variant(true, [](const Variant& v) {
    for (const ExpertsSize& s : kExpertsSizes) {
      CAPTURE(s.tokens);
      CAPTURE(s.experts);
      Inputs in = make_inputs(v.dtype, s);
      const Choices all = in.chosen;
      const std::vector<bool> drops = drops_of(s, all);
      Values weights = in.weights;
      for (std::size_t i = 0; i < drops.size(); ++i) {
        if (!drops[i]) continue;
        in.chosen[i] = -1;
        weights[i] = 0.0;
      }
      in.most = std::ranges::count(drops, false);
      const Run run = run_mixture(v.context, v.dtype, s, in, 0.5, gap_of(s));
      // The same as with weights of zero, except for the gradients of the weights.
      CHECK(relative_error(run.y, reference::mixture(in.x, in.w, all, weights, s.tokens, s.top_k,
                                                     s.out, s.in)) <= v.tolerance);
      auto g = reference::mixture_backward(in.dy, in.x, in.w, all, weights, s.tokens, s.top_k,
                                           s.out, s.in);
      CHECK(relative_error(run.dx, g.dx) <= 2 * v.tolerance);
      for (double& value : g.dw) value += 0.5;
      CHECK(relative_error(run.dw, g.dw) <= 2 * v.tolerance);
      bool all_zero = true;
      for (std::size_t i = 0; i < drops.size(); ++i) {
        if (!drops[i]) continue;
        all_zero = all_zero && run.dweights[i] == 0.0;
        g.dweights[i] = 0.0;
      }
      CHECK(all_zero);
      CHECK(relative_error(run.dweights, g.dweights) <= 2 * v.tolerance);
    }
  });
}

TEST_CASE("choices that are left are sorted without the dropped ones") {
  ExecutionContext context(2, test::device());
  const ExpertsSize s{2500, 2, 40, 1, 1};  // more than one chunk of choices
  Choices chosen = make_choices(s);
  const std::vector<bool> drops = drops_of(s, chosen);
  std::vector<std::vector<std::int32_t>> of_expert(static_cast<std::size_t>(s.experts));
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (drops[i]) chosen[i] = -1;
    if (!drops[i])
      of_expert[static_cast<std::size_t>(chosen[i])].push_back(static_cast<std::int32_t>(i));
  }
  const std::int64_t most = std::ranges::count(drops, false);
  const auto rows =
      ops::sort_by_expert(context, make_choice_tensor(context, s, chosen), s.experts, 1, most);
  CHECK(rows.capacity == most);
  Choices source, row_of(chosen.size(), -1);
  for (const auto& own : of_expert)
    for (const std::int32_t choice : own) {
      row_of[static_cast<std::size_t>(choice)] = static_cast<std::int32_t>(source.size());
      source.push_back(choice);
    }
  CHECK(ops::copy_to_host<std::int32_t>(context, rows.row_of) == row_of);
  CHECK(ops::copy_to_host<std::int32_t>(context, rows.source) == source);
  CHECK(ops::read_scalar<std::int64_t>(context, rows.row_count()) == most);
}

TEST_CASE("an expert without tokens has no rows and its gradient stays what it was") {
  for_each_variant(true, [](const Variant& v) {
    const ExpertsSize s{20, 2, 5, 8, 8};
    const Inputs in = make_inputs(v.dtype, s);
    REQUIRE(std::find(in.chosen.begin(), in.chosen.end(), 1) == in.chosen.end());
    const Run run = run_mixture(v.context, v.dtype, s, in, 0.0, 0);
    CHECK(std::all_of(run.dw.begin() + 64, run.dw.begin() + 128, [](double d) { return d == 0; }));
    CHECK(std::any_of(run.dw.begin(), run.dw.begin() + 64, [](double d) { return d != 0; }));
  });
}

TEST_CASE("rows are sorted by expert, in token order, and padded with nothing") {
  ExecutionContext context(1, test::device());
  const ExpertsSize s{3, 2, 4, 1, 2};
  const auto rows =
      ops::sort_by_expert(context, make_choice_tensor(context, s, {3, 0, 0, 3, 2, 3}), 4);
  CHECK(ops::copy_to_host<std::int64_t>(context, rows.begin) ==
        std::vector<std::int64_t>{0, 16, 16, 32, 48});
  const Choices all = ops::copy_to_host<std::int32_t>(context, rows.source);
  const auto source = all.begin();
  CHECK(Choices(source, source + 3) == Choices{1, 2, -1});
  CHECK(Choices(source + 16, source + 18) == Choices{4, -1});
  CHECK(Choices(source + 32, source + 36) == Choices{0, 3, 5, -1});
  const Tensor x = make_tensor(context, DType::f32, {3, 2}, {1, 2, 3, 4, 5, 6});
  Tensor sorted = context.zeros(DType::f32, {rows.capacity, 2});
  ops::dispatch_forward(context, rows, x, sorted);
  const Values values = values_of(sorted);
  CHECK(Values(values.begin(), values.begin() + 6) == Values{1, 2, 3, 4, 0, 0});
  CHECK(Values(values.begin() + 64, values.begin() + 72) == Values{1, 2, 3, 4, 5, 6, 0, 0});
}

TEST_CASE("many choices are sorted in token order") {
  // More than one chunk of choices: with few experts, and with so many that a block is one warp.
  for (const ExpertsSize& s : {ExpertsSize{2500, 2, 40, 1, 1}, ExpertsSize{700, 3, 1100, 1, 1}}) {
    CAPTURE(s.experts);
    ExecutionContext context(2, test::device());
    const Choices chosen = make_choices(s);
    for (const std::int64_t unit : {std::int64_t{1}, ops::kExpertRowUnit}) {
      const auto rows =
          ops::sort_by_expert(context, make_choice_tensor(context, s, chosen), s.experts, unit);
      const auto begin = ops::copy_to_host<std::int64_t>(context, rows.begin);
      const auto row_of = ops::copy_to_host<std::int32_t>(context, rows.row_of);
      const auto source = ops::copy_to_host<std::int32_t>(context, rows.source);
      std::vector<std::vector<std::int32_t>> of_expert(static_cast<std::size_t>(s.experts));
      for (std::size_t i = 0; i < chosen.size(); ++i)
        of_expert[static_cast<std::size_t>(chosen[i])].push_back(static_cast<std::int32_t>(i));
      Choices expected;
      std::vector<std::int64_t> expected_begin = {0};
      for (const auto& own : of_expert) {
        expected.insert(expected.end(), own.begin(), own.end());
        while (static_cast<std::int64_t>(expected.size()) % unit != 0) expected.push_back(-1);
        expected_begin.push_back(static_cast<std::int64_t>(expected.size()));
      }
      CHECK(begin == expected_begin);
      REQUIRE(expected.size() <= source.size());
      CHECK(std::equal(expected.begin(), expected.end(), source.begin()));
      Choices back(chosen.size());
      for (std::size_t row = 0; row < expected.size(); ++row)
        if (expected[row] >= 0)
          back[static_cast<std::size_t>(expected[row])] = static_cast<std::int32_t>(row);
      CHECK(row_of == back);
    }
  }
}

TEST_CASE("all tokens to one of many experts") {
  const DType dtype = product_dtypes().back();
  ExecutionContext context(2, test::device());
  const ExpertsSize s{50, 1, 260, 16, 8};  // one kernel handles at most 256 experts
  Inputs in = make_inputs(dtype, s);
  in.chosen.assign(in.chosen.size(), 259);
  const Run run = run_mixture(context, dtype, s, in, 0.5, 0);
  auto g = reference::mixture_backward(in.dy, in.x, in.w, in.chosen, in.weights, s.tokens, s.top_k,
                                       s.out, s.in);
  for (double& value : g.dw) value += 0.5;
  const double tolerance = dtype == DType::bf16 ? 0x1p-6 : 2e-5;
  CHECK(relative_error(run.y, reference::mixture(in.x, in.w, in.chosen, in.weights, s.tokens,
                                                 s.top_k, s.out, s.in)) <= tolerance);
  CHECK(relative_error(run.dx, g.dx) <= tolerance);
  CHECK(relative_error(run.dw, g.dw) <= tolerance);
}

TEST_CASE("rows beyond those that there are stay as they were") {
  for (const DType dtype : product_dtypes()) {
    ExecutionContext context(1, test::device());
    const ExpertsSize s{20, 2, 5, 16, 8};
    const Inputs in = make_inputs(dtype, s);
    const auto rows =
        ops::sort_by_expert(context, make_choice_tensor(context, s, in.chosen), s.experts);
    std::vector<ops::PackedWeight> packed;
    std::vector<const ops::PackedWeight*> weights;
    for (std::int64_t e = 0; e < s.experts; ++e)
      packed.emplace_back(
          make_tensor(context, dtype, {s.out, s.in},
                      Values(in.w.begin() + e * 128, in.w.begin() + e * 128 + 128)));
    for (const auto& weight : packed) weights.push_back(&weight);
    const auto sevens = [&](std::int64_t cols) {
      return make_tensor(context, dtype, {rows.capacity, cols},
                         Values(static_cast<std::size_t>(rows.capacity * cols), 7.0));
    };
    Tensor xs = sevens(s.in), dxs = sevens(s.in), ys = sevens(s.out), dys = sevens(s.out);
    const Tensor dy = make_tensor(context, dtype, {s.tokens, s.out}, in.dy);
    const Tensor gates = make_tensor(context, DType::f32, {s.tokens, s.top_k}, in.weights);
    Tensor dgates = context.empty(DType::f32, {s.tokens, s.top_k});
    ops::dispatch_forward(context, rows, make_tensor(context, dtype, {s.tokens, s.in}, in.x), xs);
    ops::grouped_linear_forward(context, rows, xs, weights, ys);
    ops::combine_backward(context, rows, dy, ys, gates, dys, dgates);
    ops::grouped_linear_backward_data(context, rows, dys, weights, dxs);
    const auto count = ops::read_scalar<std::int64_t>(context, rows.row_count());
    REQUIRE(count < rows.capacity);
    for (const Tensor* sorted : {&xs, &ys, &dys, &dxs}) {
      const Values values = values_of(*sorted);
      const auto end = values.begin() + count * sorted->size(1);
      CHECK(std::all_of(end, values.end(), [](double value) { return value == 7.0; }));
      CHECK(std::none_of(values.begin(), end, [](double value) { return value == 7.0; }));
    }
  }
}

TEST_CASE("a mixture without tokens") {
  for (const DType dtype : product_dtypes()) {
    ExecutionContext context(2, test::device());
    const ExpertsSize s{0, 2, 3, 8, 16};
    const Run run = run_mixture(context, dtype, s, make_inputs(dtype, s), 0.5, 0);
    CHECK(run.y.empty());
    CHECK(run.dx.empty());
    CHECK(std::all_of(run.dw.begin(), run.dw.end(), [](double value) { return value == 0.5; }));
  }
}

TEST_CASE("a NaN row stays with its token and reaches its experts' gradients") {
  for_each_variant(true, [](const Variant& v) {
    const ExpertsSize s{20, 1, 4, 8, 8};
    Inputs in = make_inputs(v.dtype, s);
    in.x[5 * 8 + 3] = kNaN;
    const Run run = run_mixture(v.context, v.dtype, s, in, 0.0, 0);
    for (std::int64_t t = 0; t < s.tokens; ++t)
      CHECK(all_finite(Values(run.y.begin() + t * 8, run.y.begin() + t * 8 + 8)) == (t != 5));
    for (std::int32_t e = 0; e < 4; ++e)
      CHECK(all_finite(Values(run.dw.begin() + e * 64, run.dw.begin() + e * 64 + 64)) ==
            (in.chosen[5] != e));
  });
}

TEST_CASE("a mixture has the same bits on any number of threads") {
  for (const DType dtype : product_dtypes())
    check_same_bits(kAnyThreads, [&](ExecutionContext& context) {
      const ExpertsSize s{300, 3, 6, 70, 40};
      const Run run = run_mixture(context, dtype, s, make_inputs(dtype, s), 0.0, 0);
      Values all = run.y;
      for (const Values* more : {&run.dx, &run.dw, &run.dweights})
        all.insert(all.end(), more->begin(), more->end());
      return all;
    });
}

}  // namespace sortie::trainer
