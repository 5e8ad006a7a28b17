// Compares routers and balance losses with the f64 references. They are f32 whatever type the
// activations have.
#include "trainer/ops/moe_router.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/update_gate.h"

#include <algorithm>
#include <numeric>

#include "tests/support/open_gate.h"
#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/reference_moe.h"

namespace sortie::trainer {
namespace {

using ops::RouterScore;
using ops::RouterSpec;
using Choices = std::vector<std::int32_t>;

constexpr double kTolerance = 1e-5;

// One expert, as many choices as experts, groups of one, two, four and many, odd numbers,
// and so many experts that a GPU has one row in a block.
const RouterSpec kSpecs[] = {
    {RouterScore::softmax, 1, 1},
    {RouterScore::softmax, 8, 2},
    {RouterScore::softmax, 7, 7, 1, 1, false, 1.0f},
    {RouterScore::softmax, 12, 3, 4, 2, false, 2.0f},
    {RouterScore::sigmoid, 8, 3},
    {RouterScore::sigmoid, 16, 4, 8, 3, true, 2.5f},
    {RouterScore::sigmoid, 6, 2, 6, 4, true, 2.446f},
    {RouterScore::sigmoid, 64, 6, 1, 1, false, 1.0f},
    {RouterScore::softmax, 300, 10, 4, 3, true, 1.5f},
    {RouterScore::sigmoid, 1600, 5, 8, 2, true, 1.0f},
};

struct RouterRun {
  Tensor scores, experts, weights;
  Choices chosen() const { return numbers_of<std::int32_t>(experts); }
};
RouterRun run_router(ExecutionContext& context, const RouterSpec& spec, std::int64_t rows,
                     const Values& logits, const Values& bias, const Choices& replay = {}) {
  RouterRun run{context.empty(DType::f32, {rows, spec.experts}),
                context.empty(DType::i32, {rows, spec.top_k}),
                context.empty(DType::f32, {rows, spec.top_k})};
  Tensor given;
  if (!replay.empty())
    given = ops::tensor_from_host<std::int32_t>(context, replay, {rows, spec.top_k});
  ops::route_forward(
      context, spec, make_tensor(context, DType::f32, {rows, spec.experts}, logits),
      bias.empty() ? Tensor() : make_tensor(context, DType::f32, {spec.experts}, bias), given,
      run.scores, run.experts, run.weights);
  return run;
}

template <class Body>
void for_each_thread_count(const Body& body) {
  for (const int threads : {1, 2}) {
    if (threads > 1 && test::on_gpu()) continue;
    ExecutionContext context(threads, test::device());
    body(context);
  }
}

}  // namespace

TEST_CASE("routers equal the reference forward and backward") {
  for_each_thread_count([](ExecutionContext& context) {
    for (const RouterSpec& spec : kSpecs)
      for (const std::int64_t rows : {1, 70})
        for (const bool biased : {false, true}) {
          CAPTURE(spec.experts);
          CAPTURE(spec.top_k);
          CAPTURE(rows);
          CAPTURE(biased);
          const Values logits = random_values(DType::f32, 1, rows * spec.experts, 4.0);
          const Values bias = biased ? random_values(DType::f32, 2, spec.experts, 0.3) : Values();
          const auto expected = reference::route(spec, logits, bias, {}, rows);
          const RouterRun run = run_router(context, spec, rows, logits, bias);
          CHECK(run.chosen() == expected.experts);
          CHECK(relative_error(values_of(run.scores), expected.scores) <= kTolerance);
          CHECK(relative_error(values_of(run.weights), expected.weights) <= kTolerance);

          const Values dweights = random_values(DType::f32, 3, rows * spec.top_k);
          const Values dscores = random_values(DType::f32, 4, rows * spec.experts);
          Tensor dlogits = context.empty(DType::f32, {rows, spec.experts});
          const Tensor dw = make_tensor(context, DType::f32, {rows, spec.top_k}, dweights);
          ops::route_backward(context, spec, run.scores, run.experts, dw,
                              make_tensor(context, DType::f32, {rows, spec.experts}, dscores),
                              dlogits);
          if (spec.experts == 1 && spec.score == RouterScore::softmax) {
            CHECK(std::ranges::all_of(values_of(dlogits), [](double d) { return d == 0; }));
            continue;
          }
          CHECK(relative_error(values_of(dlogits), reference::route_backward(
                                                       spec, expected, dweights, dscores, rows)) <=
                kTolerance);
          ops::route_backward(context, spec, run.scores, run.experts, dw, {}, dlogits);
          if (spec.top_k < spec.experts)
            CHECK(relative_error(values_of(dlogits),
                                 reference::route_backward(spec, expected, dweights, {}, rows)) <=
                  kTolerance);
        }
  });
}

TEST_CASE("of equal choices the lower expert wins, in and between groups") {
  ExecutionContext context(1, test::device());
  const Values flat(8, 0.25);
  CHECK(run_router(context, {RouterScore::softmax, 8, 3}, 1, flat, {}).chosen() ==
        Choices{0, 1, 2});
  CHECK(run_router(context, {RouterScore::sigmoid, 8, 3, 4, 2}, 1, flat, {}).chosen() ==
        Choices{0, 1, 2});
  Choices first(40);
  std::iota(first.begin(), first.end(), 0);
  CHECK(run_router(context, {RouterScore::softmax, 70, 40}, 1, Values(70, 1.0), {}).chosen() ==
        first);
  // Both scores are 1 in f32: the bias alone decides, then the index.
  CHECK(run_router(context, {RouterScore::sigmoid, 4, 2}, 1, {40, 50, 60, 0}, {0, 0, 0.5, 0})
            .chosen() == Choices{2, 0});
  // All groups are equal: the first two are kept, although later experts have the same scores.
  CHECK(run_router(context, {RouterScore::sigmoid, 8, 4, 4, 2}, 1, {1, 2, 1, 2, 1, 2, 1, 2}, {})
            .chosen() == Choices{1, 3, 0, 2});
  // All choices of all rows tie: any number of threads selects the same experts.
  const RouterSpec spec{RouterScore::sigmoid, 16, 4, 4, 2};
  check_same_bits(kAnyThreads, [&](ExecutionContext& any) {
    const RouterRun run = run_router(any, spec, 90, Values(90 * 16, 1.0), Values(16, -0.125));
    Values all = values_of(run.weights);
    for (const std::int32_t e : run.chosen()) all.push_back(e);
    return all;
  });
}

TEST_CASE("experts of a group that is not kept are never chosen, even with negative choices") {
  ExecutionContext context(1, test::device());
  // All choices are negative: a mask of zero would let the other groups in.
  const Values bias(8, -2.0);
  const Values logits = {3, 3, 2, 2, 1, 1, 0, 0};
  CHECK(run_router(context, {RouterScore::sigmoid, 8, 4, 4, 2}, 1, logits, bias).chosen() ==
        Choices{0, 1, 2, 3});
  // The best expert of all is in a group that is not kept.
  CHECK(run_router(context, {RouterScore::sigmoid, 4, 2, 2, 1}, 1, {1, 1, 2, -5}, {}).chosen() ==
        Choices{0, 1});
}

TEST_CASE("the bias decides the selection and leaves the weights alone") {
  ExecutionContext context(1, test::device());
  const RouterSpec spec{RouterScore::sigmoid, 4, 2};
  const Values logits = {2, 1, 0, -1};
  const RouterRun biased = run_router(context, spec, 1, logits, {0, 0, 0, 5});
  CHECK(biased.chosen() == Choices{3, 0});
  const RouterRun replayed = run_router(context, spec, 1, logits, {}, {3, 0});
  CHECK(replayed.chosen() == Choices{3, 0});
  CHECK(values_of(biased.weights) == values_of(replayed.weights));
}

TEST_CASE("a NaN logit reaches the weights and selects existing experts") {
  ExecutionContext context(1, test::device());
  for (const RouterSpec& spec : kSpecs) {
    Values logits = random_values(DType::f32, 1, 2 * spec.experts);
    std::fill_n(logits.begin(), spec.experts, kNaN);
    const RouterRun run = run_router(context, spec, 2, logits, {});
    const Values weights = values_of(run.weights);
    CHECK_FALSE(all_finite(Values(weights.begin(), weights.begin() + spec.top_k)));
    CHECK(all_finite(Values(weights.begin() + spec.top_k, weights.end())));
    Choices chosen = run.chosen();
    chosen.resize(static_cast<std::size_t>(spec.top_k));
    std::sort(chosen.begin(), chosen.end());
    CHECK(std::unique(chosen.begin(), chosen.end()) == chosen.end());
    CHECK((chosen.front() >= 0 && chosen.back() < spec.experts));
  }
}

TEST_CASE("one NaN logit is chosen before all others, and its group is kept") {
  ExecutionContext context(1, test::device());
  const RouterRun run =
      run_router(context, {RouterScore::sigmoid, 4, 2}, 2, {5, 4, kNaN, 3, 5, 4, 2, 3}, {});
  CHECK(run.chosen() == Choices{2, 0, 0, 1});
  CHECK_FALSE(std::isfinite(values_of(run.weights)[0]));
  CHECK(run_router(context, {RouterScore::sigmoid, 6, 2, 3, 1}, 1, {5, 5, 4, 4, 1, kNaN}, {})
            .chosen() == Choices{5, 4});
}

TEST_CASE("choices are counted over many rows") {
  // More than one chunk per sequence, and more than one part of the column sums.
  const std::int64_t rows = 2800, experts = 5, k = 3;
  ExecutionContext context(2, test::device());
  const Values scores = random_values(DType::f32, 1, rows * experts);
  const Tensor in = make_tensor(context, DType::f32, {rows, experts}, scores);
  Tensor counts = context.empty(DType::f32, {2, experts});
  ops::count_top_experts(context, in, k, counts);
  const Values expected = reference::top_counts(scores, experts, k, rows, rows / 2);
  CHECK(values_of(counts) == expected);
  Values columns(experts);
  for (std::size_t i = 0; i < scores.size(); ++i) columns[i % experts] += scores[i];
  Tensor all = context.zeros(DType::f64, {experts});
  ops::column_sums(context, in, all);
  const Values sums = ops::copy_to_host<double>(context, all);
  for (std::size_t e = 0; e < columns.size(); ++e)
    CHECK(sums[e] == doctest::Approx(columns[e]).epsilon(1e-12));

  Choices chosen;
  std::vector<double> often(experts);
  for (const double score : scores) {
    chosen.push_back(static_cast<std::int32_t>((score + 1) / 2 * 0.999 * experts));
    ++often[static_cast<std::size_t>(chosen.back())];
  }
  Tensor times = context.empty(DType::f64, {experts});
  ops::count_choices(context, ops::tensor_from_host<std::int32_t>(context, chosen, {rows, experts}),
                     times);
  CHECK(ops::copy_to_host<double>(context, times) == often);
}

namespace {

struct LimitedSize {
  std::int64_t rows, top_k, experts, sequences, capacity;
};

/// Returns uneven choices: experts with low numbers are chosen most.
Choices uneven_choices(const LimitedSize& s) {
  Choices chosen;
  for (const double draw : random_values(DType::f32, 11, s.rows * s.top_k))
    chosen.push_back(
        static_cast<std::int32_t>(draw * draw * 0.999 * static_cast<double>(s.experts)));
  return chosen;
}

struct Limited {
  Choices kept;
  double dropped = 0.0;
  bool operator==(const Limited&) const = default;
};
Limited limited(ExecutionContext& context, const LimitedSize& s, const Choices& chosen,
                double dropped_before = 0.0) {
  Tensor kept = context.empty(DType::i32, {s.rows, s.top_k});
  Tensor dropped = ops::tensor_from_host<double>(context, Values{dropped_before}, {1});
  ops::limit_choices(context,
                     ops::tensor_from_host<std::int32_t>(context, chosen, {s.rows, s.top_k}),
                     s.experts, {s.capacity, s.sequences}, kept, dropped);
  return {ops::copy_to_host<std::int32_t>(context, kept),
          ops::read_scalar<double>(context, dropped)};
}

/// Applies the definition: a choice is kept if fewer than `capacity` earlier choices of its
/// sequence have the same expert.
Limited limited_by_definition(const LimitedSize& s, const Choices& chosen) {
  Limited all;
  const std::size_t length = chosen.size() / static_cast<std::size_t>(s.sequences);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const auto first = chosen.begin() + static_cast<std::ptrdiff_t>(i / length * length);
    const bool stays =
        std::count(first, chosen.begin() + static_cast<std::ptrdiff_t>(i), chosen[i]) < s.capacity;
    all.kept.push_back(stays ? chosen[i] : -1);
    all.dropped += stays ? 0.0 : 1.0;
  }
  return all;
}

// One row; no choice over the capacity; one choice per expert; several chunks per sequence; a
// sequence that ends within a warp's choices; so many experts that a block is one warp.
constexpr LimitedSize kLimitedSizes[] = {{1, 1, 1, 1, 1},    {12, 2, 4, 3, 100},
                                         {40, 2, 6, 5, 1},   {4200, 2, 7, 2, 300},
                                         {111, 3, 16, 3, 9}, {1400, 3, 1100, 2, 2}};

}  // namespace

TEST_CASE("an expert with a capacity takes the earliest choices of each sequence") {
  ExecutionContext context(2, test::device());
  for (const LimitedSize& s : kLimitedSizes) {
    CAPTURE(s.rows);
    const Choices chosen = uneven_choices(s);
    const Limited expected = limited_by_definition(s, chosen);
    CHECK((expected.dropped > 0) == (s.rows > 12));
    CHECK(limited(context, s, chosen) == expected);
    CHECK(limited(context, s, chosen, 5.0).dropped == expected.dropped + 5.0);
  }
}

TEST_CASE("places that have a part of each sequence drop the choices that one place drops") {
  ExecutionContext context(2, test::device());
  constexpr std::int64_t kPlaces = 2, kChunks = 2 * kPlaces;
  for (const LimitedSize& s : {LimitedSize{24, 2, 5, 2, 3}, LimitedSize{4800, 2, 7, 3, 350},
                               LimitedSize{2400, 3, 1100, 2, 3}}) {
    CAPTURE(s.rows);
    const Choices chosen = uneven_choices(s);
    const Limited expected = limited_by_definition(s, chosen);
    const auto length = static_cast<std::size_t>(s.rows * s.top_k / s.sequences / kChunks);
    Choices kept(chosen.size());
    double dropped = 0.0;
    for (const std::int64_t place : {0, 1}) {
      const std::size_t chunks[] = {static_cast<std::size_t>(place),
                                    static_cast<std::size_t>(kChunks - 1 - place)};
      Choices here;
      Values before;  // by chunk, by sequence, by expert
      std::vector<float> counts;
      for (const std::size_t chunk : chunks)
        for (std::int64_t sequence = 0; sequence < s.sequences; ++sequence)
          for (std::int64_t expert = 0; expert < s.experts; ++expert) {
            const auto first =
                chosen.begin() + static_cast<std::ptrdiff_t>(length * kChunks) * sequence;
            before.push_back(static_cast<double>(
                std::count(first, first + static_cast<std::ptrdiff_t>(length * chunk), expert)));
          }
      for (std::size_t sequence = 0; sequence < static_cast<std::size_t>(s.sequences); ++sequence)
        for (const std::size_t chunk : chunks) {
          const auto first =
              chosen.begin() + static_cast<std::ptrdiff_t>(length * (sequence * kChunks + chunk));
          here.insert(here.end(), first, first + static_cast<std::ptrdiff_t>(length));
          for (std::int64_t expert = 0; expert < s.experts; ++expert)
            counts.push_back(static_cast<float>(
                std::count(first, first + static_cast<std::ptrdiff_t>(length), expert)));
        }
      const Tensor experts =
          ops::tensor_from_host<std::int32_t>(context, here, {s.rows / kPlaces, s.top_k});
      Tensor counted = context.empty(DType::f32, {2 * s.sequences, s.experts});
      ops::count_choices_of_parts(context, experts, counted);
      CHECK(ops::copy_to_host<float>(context, counted) == counts);
      Tensor own = context.empty(DType::i32, experts.shape());
      Tensor late = context.zeros(DType::f64, {1});
      ops::limit_choices(
          context, experts, s.experts,
          {s.capacity, s.sequences,
           ops::tensor_from_host<double>(context, before, {2, s.sequences, s.experts})},
          own, late);
      dropped += ops::read_scalar<double>(context, late);
      const Choices values = ops::copy_to_host<std::int32_t>(context, own);
      for (std::size_t sequence = 0; sequence < static_cast<std::size_t>(s.sequences); ++sequence)
        for (std::size_t half : {0, 1})
          std::copy_n(
              values.begin() + static_cast<std::ptrdiff_t>(length * (2 * sequence + half)), length,
              kept.begin() +
                  static_cast<std::ptrdiff_t>(length * (sequence * kChunks + chunks[half])));
    }
    CHECK(expected.dropped > 0.0);
    CHECK(dropped == expected.dropped);
    CHECK(kept == expected.kept);
  }
}

TEST_CASE("a capacity lets no token depend on a later one, or on another sequence") {
  ExecutionContext context(1, test::device());
  const LimitedSize s{60, 2, 5, 3, 6};
  Choices chosen = uneven_choices(s);
  const Choices before = limited(context, s, chosen).kept;
  for (std::size_t i = 60; i < 80; ++i) chosen[i] = 0;  // the second half of the second sequence
  const Choices after = limited(context, s, chosen).kept;
  CHECK(before != after);
  CHECK(std::equal(before.begin(), before.begin() + 60, after.begin()));
  CHECK(std::equal(before.begin() + 80, before.end(), after.begin() + 80));
}

namespace {

Tensor sums(ExecutionContext& context, const Values& values) {
  return ops::tensor_from_host<double>(context, values, {static_cast<std::int64_t>(values.size())});
}
double sequence_balance(ExecutionContext& context, const Tensor& scores, const Tensor& counts,
                        std::int64_t top_k) {
  Tensor loss = context.zeros(DType::f64, {1});
  ops::sequence_balance(context, scores, counts, top_k, 1.0, loss);
  return ops::read_scalar<double>(context, loss);
}
Tensor column_sums(ExecutionContext& context, const Tensor& matrix) {
  Tensor all = context.zeros(DType::f64, {matrix.size(1)});
  ops::column_sums(context, matrix, all);
  return all;
}
double load_balance(ExecutionContext& context, const Tensor& assigned, const Tensor& scores,
                    double rows) {
  Tensor loss = context.zeros(DType::f64, {1});
  ops::load_balance(context, assigned, scores, rows, 1.0, loss);
  return ops::read_scalar<double>(context, loss);
}

}  // namespace

TEST_CASE("balance losses equal the reference forward and backward") {
  for_each_thread_count([](ExecutionContext& context) {
    for (const std::int64_t length : {1, 12, 36}) {
      const std::int64_t rows = 36, experts = 7, k = 3;
      CAPTURE(length);
      Values scores = random_values(DType::f32, 1, rows * experts, 0.4);
      for (double& s : scores) s += 0.5;
      scores = rounded(DType::f32, scores);
      const Tensor in = make_tensor(context, DType::f32, {rows, experts}, scores);
      Tensor counts = context.empty(DType::f32, {rows / length, experts});
      ops::count_top_experts(context, in, k, counts);
      const Values expected = reference::top_counts(scores, experts, k, rows, length);
      CHECK(values_of(counts) == expected);
      CHECK(sequence_balance(context, in, counts, k) ==
            doctest::Approx(reference::sequence_balance(scores, expected, experts, k, rows, length))
                .epsilon(1e-9));
      const Values start = random_values(DType::f32, 2, rows * experts);
      Tensor d = make_tensor(context, DType::f32, {rows, experts}, start);
      ops::sequence_balance_backward(context, in, counts, k, 3.0f, d);
      Values slope =
          reference::sequence_balance_backward(scores, expected, experts, k, rows, length);
      for (std::size_t i = 0; i < slope.size(); ++i) slope[i] = start[i] + 3.0 * slope[i];
      CHECK(relative_error(values_of(d), slope) <= kTolerance);

      const Tensor assigned_sums = column_sums(context, counts);
      const Values assigned = ops::copy_to_host<double>(context, assigned_sums);
      CHECK(
          load_balance(context, assigned_sums, column_sums(context, in), rows) ==
          doctest::Approx(reference::load_balance(scores, assigned, experts, rows)).epsilon(1e-9));
      Tensor flat = make_tensor(context, DType::f32, {rows, experts}, start);
      ops::load_balance_backward(context, assigned_sums, rows, 2.0f, flat);
      slope = reference::load_balance_backward(assigned, experts, rows);
      for (std::size_t i = 0; i < slope.size(); ++i) slope[i] = start[i] + 2.0 * slope[i];
      CHECK(relative_error(values_of(flat), slope) <= kTolerance);
    }
  });
}

TEST_CASE("a perfectly even load costs exactly one") {
  ExecutionContext context(1, test::device());
  const std::int64_t rows = 4, experts = 4;
  const Tensor scores = make_tensor(context, DType::f32, {rows, experts}, Values(16, 0.25));
  const Tensor counts = make_tensor(context, DType::f32, {1, experts}, {1, 1, 1, 1});
  CHECK(sequence_balance(context, scores, counts, 1) == 1.0);
  CHECK(load_balance(context, column_sums(context, counts), column_sums(context, scores), rows) ==
        1.0);
}

TEST_CASE("the balancing bias moves by the rate towards the mean, and stays where it is there") {
  ExecutionContext context(1, test::device());
  Tensor bias = make_tensor(context, DType::f32, {4}, {0.5, 0, 0, 0.25});
  const Tensor gate = test::open_gate(context, 0.9, 0.95, 1);
  ops::update_router_bias(context, gate, sums(context, {10, 0, 7, 3}), 0.125f, bias);
  CHECK(values_of(bias) == Values{0.375, 0.125, -0.125, 0.375});
  ops::update_router_bias(context, gate, sums(context, {5, 5, 5, 5}), 0.125f, bias);
  ops::update_router_bias(context, gate, sums(context, {0, 0, 0, 0}), 0.125f, bias);
  CHECK(values_of(bias) == Values{0.375, 0.125, -0.125, 0.375});
  ops::update_router_bias(context, gate, sums(context, {6, 2, 4, 4}), 0.125f, bias);
  CHECK(values_of(bias) == Values{0.25, 0.25, -0.125, 0.375});
  ops::update_router_bias(context, context.zeros(DType::f32, {ops::kGateValues}),
                          sums(context, {6, 2, 4, 4}), 0.125f, bias);
  CHECK(values_of(bias) == Values{0.25, 0.25, -0.125, 0.375});
}

}  // namespace sortie::trainer
