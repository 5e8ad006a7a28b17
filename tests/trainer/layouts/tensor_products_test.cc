// Compares products that overlap with exchanges with products and exchanges one after another.
#include "trainer/autograd/tensor_products.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>

#include "tests/support/flat_values.h"
#include "trainer/parallel/thread_ranks.h"

namespace sortie::trainer::test {
namespace {

struct Case {
  int ranks;
  bool sequence, enters;  // enters: enter_linear(), else linear_leave()
  std::int64_t rows;      // of one rank if rows are shared, else of all
};

/// Values and gradients of one rank.
struct Outcome {
  std::vector<float> y, gradients, dx;
};

Outcome multiplied(Communicator& world, const Case& one, bool beside) {
  constexpr std::int64_t kIn = 24, kOut = 40;
  ExecutionContext context(1, device());
  const bool shared = one.sequence;
  const TensorGroup group{world, shared};
  const std::int64_t all = shared ? one.rows * world.size() : one.rows;
  const std::int64_t in_rows = shared && one.enters ? one.rows : all;
  const std::int64_t out_rows = shared && !one.enters ? one.rows : all;
  ParameterStore store;
  Parameter& weight = store.add({"w", {kOut, kIn}, Init::normal(1.0), Use::matrix, true});
  Parameter& bias = store.add({"b", {kOut}, Init::normal(1.0), Use::vector, false});
  Parameter& x = store.add({"x", {in_rows, kIn}, Init::normal(1.0), Use::matrix, true});
  Parameter& dy = store.add({"dy", {out_rows, kOut}, Init::normal(1.0), Use::matrix, true});
  store.finalize(context, DType::f32, kLineElements, true);
  store.initialize(static_cast<std::uint64_t>(world.rank()) + 1);
  Graph graph(context, Graph::Mode::record);
  const LinearOptions options{.adds_bias = one.enters || world.rank() == 0,
                              .beside_exchanges = true};
  graph.use(x);  // so that the input of the product is trained
  const Var in = graph.value(x.weight());
  Var y;
  if (beside)
    y = one.enters ? enter_linear(graph, in, weight, &bias, options, &group)
                   : linear_leave(graph, in, weight, &bias, options, &group);
  else
    y = one.enters ? linear(graph, enter(graph, in, &group), weight, &bias, options)
                   : leave(graph, linear(graph, in, weight, &bias, options), &group);
  Outcome outcome;
  outcome.y = ops::copy_to_host<float>(context, y.data);
  // A sum whose rows are not shared is the same on all ranks, and so is its gradient.
  if (!shared && !one.enters) store.initialize(7);
  Tensor seed = context.empty(DType::f32, dy.weight().shape());
  ops::copy(context, dy.weight(), seed);
  store.initialize(static_cast<std::uint64_t>(world.rank()) + 1);
  graph.backward({{y, seed}});
  outcome.gradients = host_values(store, weight.grad());
  for (const float value : host_values(store, bias.grad())) outcome.gradients.push_back(value);
  outcome.dx = ops::copy_to_host<float>(context, in.grad->tensor);
  return outcome;
}

void check_near(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  REQUIRE_FALSE(a.empty());
  double difference = 0.0, size = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(a[i] - b[i], 2);
    size += std::pow(b[i], 2);
  }
  CHECK(size > 0.0);
  CHECK(std::sqrt(difference) <= 1e-6 * std::sqrt(size));
}

TEST_CASE("products with exchanges beside them are those without, forward and backward") {
  for (const int ranks : {2, 3})
    for (const bool sequence : {false, true})
      for (const bool enters : {false, true})
        for (const std::int64_t rows : {15, 16, 33, 64, 200}) {
          const Case one{ranks, sequence, enters, rows};
          CAPTURE(ranks);
          CAPTURE(sequence);
          CAPTURE(enters);
          CAPTURE(rows);
          std::vector<Outcome> outcomes[2];
          std::atomic<int> messages[2] = {0, 0};
          for (const bool beside : {false, true}) {
            outcomes[beside].resize(static_cast<std::size_t>(ranks));
            run_thread_ranks(ranks,
                             [&](Communicator& world) {
                               outcomes[beside][static_cast<std::size_t>(world.rank())] =
                                   multiplied(world, one, beside);
                             },
                             {.max_delay = std::chrono::microseconds(200),
                              .seed = static_cast<std::uint64_t>(rows),
                              .on_send = [&](int, int, std::size_t) { ++messages[beside]; }});
          }
          for (std::size_t rank = 0; rank < outcomes[0].size(); ++rank) {
            CAPTURE(rank);
            check_near(outcomes[1][rank].y, outcomes[0][rank].y);
            check_near(outcomes[1][rank].gradients, outcomes[0][rank].gradients);
            check_near(outcomes[1][rank].dx, outcomes[0][rank].dx);
          }
          // A sum of 32 rows or more is exchanged in two halves, which are separate exchanges.
          // Large sums are sent in several messages anyway.
          const bool halves = !enters && rows >= 32;
          if (rows < 100) CHECK((messages[1] > messages[0]) == halves);
        }
}

}  // namespace
}  // namespace sortie::trainer::test
