// Compares the backward passes of the mixture references with central finite differences.
#include "tests/trainer/ops/reference_moe.h"

#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/slopes.h"

namespace sortie::trainer {

using ops::RouterScore;
using ops::RouterSpec;

TEST_CASE("the router reference's gradients are its slopes") {
  const std::int64_t rows = 3;
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid})
    for (const bool normalize : {true, false}) {
      const RouterSpec spec{score, 6, 2, 3, 2, normalize, 1.5f};
      const Vec logits = random_values(1, rows * 6, 3.0), bias = random_values(2, 6, 0.2);
      const Vec dweights = random_values(3, rows * 2), dscores = random_values(4, rows * 6);
      const auto routing = reference::route(spec, logits, bias, {}, rows);
      check_gradient(
          [&](const Vec& p) {
            const auto r = reference::route(spec, p, {}, routing.experts, rows);
            return weighted(r.weights, dweights) + weighted(r.scores, dscores);
          },
          logits, reference::route_backward(spec, routing, dweights, dscores, rows));
    }
}

TEST_CASE("the balance references' gradients are their slopes") {
  const std::int64_t rows = 8, length = 4, experts = 5, k = 2;
  Vec scores = random_values(1, rows * experts, 0.4);
  for (double& s : scores) s += 0.5;
  const Vec counts = reference::top_counts(scores, experts, k, rows, length);
  check_gradient(
      [&](const Vec& p) {
        return reference::sequence_balance(p, counts, experts, k, rows, length);
      },
      scores, reference::sequence_balance_backward(scores, counts, experts, k, rows, length));
  const Vec all = reference::top_counts(scores, experts, k, rows, rows);
  check_gradient([&](const Vec& p) { return reference::load_balance(p, all, experts, rows); },
                 scores, reference::load_balance_backward(all, experts, rows));
}

TEST_CASE("the mixture reference's gradients are its slopes") {
  const std::int64_t rows = 3, k = 2, n = 2, c = 3, experts = 4;
  const Vec x = random_values(1, rows * c), w = random_values(2, experts * n * c);
  const Vec weights = random_values(3, rows * k), dy = random_values(4, rows * n);
  const std::vector<std::int32_t> chosen = {0, 2, 2, 3, 0, 3};
  const auto g = reference::mixture_backward(dy, x, w, chosen, weights, rows, k, n, c);
  const auto f = [&](const Vec& px, const Vec& pw, const Vec& pg) {
    return weighted(reference::mixture(px, pw, chosen, pg, rows, k, n, c), dy);
  };
  check_gradient([&](const Vec& p) { return f(p, w, weights); }, x, g.dx);
  check_gradient([&](const Vec& p) { return f(x, p, weights); }, w, g.dw);
  check_gradient([&](const Vec& p) { return f(x, w, p); }, weights, g.dweights);
}

}  // namespace sortie::trainer
