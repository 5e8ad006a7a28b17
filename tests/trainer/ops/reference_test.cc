// Compares the backward passes of the references with central finite differences of their forward
// passes.
#include "tests/trainer/ops/reference.h"

#include <doctest/doctest.h>

#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/slopes.h"

namespace sortie::trainer {

using reference::HeadShape;

TEST_CASE("the linear reference's gradients are its slopes") {
  const std::int64_t m = 3, n = 4, k = 5;
  const Vec x = random_values(1, m * k), w = random_values(2, n * k), b = random_values(3, n);
  const Vec dy = random_values(4, m * n);
  const auto g = reference::linear_backward(dy, x, w, m, n, k);
  check_gradient([&](const Vec& p) { return weighted(reference::linear(p, w, b, m, n, k), dy); }, x,
                 g.dx);
  check_gradient([&](const Vec& p) { return weighted(reference::linear(x, p, b, m, n, k), dy); }, w,
                 g.dw);
  check_gradient([&](const Vec& p) { return weighted(reference::linear(x, w, p, m, n, k), dy); }, b,
                 g.dbias);
}

TEST_CASE("the norm references' gradients are their slopes") {
  const std::int64_t rows = 3, cols = 7;
  const double eps = 1e-3;
  for (const bool layer : {false, true}) {
    CAPTURE(layer);
    const Vec x = random_values(1, rows * cols), weight = random_values(2, cols);
    const Vec bias = layer ? random_values(3, cols) : Vec();
    const Vec dy = random_values(4, rows * cols);
    const auto g = reference::norm_backward(layer, dy, x, weight, eps, rows, cols);
    const auto f = [&](const Vec& px, const Vec& pw, const Vec& pb) {
      return weighted(reference::norm(layer, px, pw, pb, eps, rows, cols), dy);
    };
    check_gradient([&](const Vec& p) { return f(p, weight, bias); }, x, g.dx);
    check_gradient([&](const Vec& p) { return f(x, p, bias); }, weight, g.dweight);
    if (layer) check_gradient([&](const Vec& p) { return f(x, weight, p); }, bias, g.dbias);
  }
}

TEST_CASE("the activation references' gradients are their slopes") {
  const std::int64_t rows = 2, cols = 5;
  const Vec gate_up = random_values(1, rows * 2 * cols, 4.0), dy = random_values(2, rows * cols);
  check_gradient([&](const Vec& p) { return weighted(reference::swiglu(p, rows, cols), dy); },
                 gate_up, reference::swiglu_backward(dy, gate_up, rows, cols));
  const Vec x = random_values(3, rows * cols, 4.0);
  for (const bool tanh : {false, true})
    check_gradient([&](const Vec& p) { return weighted(reference::gelu(p, tanh), dy); }, x,
                   reference::gelu_backward(dy, x, tanh));
}

TEST_CASE("the RoPE reference turned back is its gradient") {
  const HeadShape shape{2, 3, 2, 2, 8};
  const Vec x = random_values(1, 2 * 3 * 2 * 8), dy = random_values(2, 2 * 3 * 2 * 8);
  check_gradient(
      [&](const Vec& p) { return weighted(reference::rope(p, shape, 6, 100.0, 1.0), dy); }, x,
      reference::rope(dy, shape, 6, 100.0, -1.0));
}

TEST_CASE("the attention reference's gradients are its slopes") {
  const double scale = 0.7;
  reference::Mask masked;
  masked.sees = [](std::int64_t b, std::int64_t i, std::int64_t j) {
    return i - j < 3 && (b == 0 || i < 2 || j >= 2);
  };
  masked.factor = [](std::int64_t, std::int64_t h, std::int64_t i, std::int64_t j) {
    return (h + i + j) % 3 == 0 ? 0.0 : 1.5;
  };
  for (const reference::Mask& mask : {reference::Mask{}, masked})
    for (const std::int64_t value_dims : {0, 2}) {
      const HeadShape s{2, 4, 4, 2, 3, value_dims};
      const std::int64_t width = value_dims != 0 ? value_dims : s.dims;
      const std::int64_t rows = s.batch * s.tokens;
      const Vec q = random_values(1, rows * s.heads * s.dims),
                k = random_values(2, rows * s.key_heads * s.dims),
                v = random_values(3, rows * s.key_heads * width),
                dout = random_values(4, rows * s.heads * width);
      const auto g = reference::attention_backward(q, k, v, dout, s, scale, mask);
      const auto f = [&](const Vec& pq, const Vec& pk, const Vec& pv) {
        return weighted(reference::attention(pq, pk, pv, s, scale, mask).out, dout);
      };
      check_gradient([&](const Vec& p) { return f(p, k, v); }, q, g.dq);
      check_gradient([&](const Vec& p) { return f(q, p, v); }, k, g.dk);
      check_gradient([&](const Vec& p) { return f(q, k, p); }, v, g.dv);
    }
}

TEST_CASE("the cross-entropy reference's gradients are its slopes") {
  const std::int64_t m = 4, n = 8, k = 3, vocab = 6;
  const Vec h = random_values(1, m * k), w = random_values(2, n * k);
  const std::vector<std::int32_t> targets = {5, -100, 0, 3};
  const auto g = reference::cross_entropy(h, w, targets, m, n, k, vocab, 0.5);
  const auto f = [&](const Vec& ph, const Vec& pw) {
    return 0.5 * reference::cross_entropy(ph, pw, targets, m, n, k, vocab, 0.5).loss;
  };
  CHECK(g.count == 3);
  check_gradient([&](const Vec& p) { return f(p, w); }, h, g.dh);
  check_gradient([&](const Vec& p) { return f(h, p); }, w, g.dw);
}

}  // namespace sortie::trainer
