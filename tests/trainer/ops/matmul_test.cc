// Tests of the cache of products: a product stays valid while a caller holds it, and sequences of
// any length need few products.
#include "trainer/ops/cpu/matmul.h"

#include "tests/trainer/ops/op_test.h"
#include "trainer/ops/attention.h"
#include "trainer/ops/cpu/cpu_backend.h"

namespace sortie::trainer {

TEST_CASE(
    "products are as many for a long sequence as for a longer one, and memory grows with it") {
  const auto used = [](std::int64_t tokens, std::int64_t window) {
    ExecutionContext context(1);
    const Shape shape{1, tokens, 1, 8};
    const auto random = [&](std::uint64_t seed) {
      return make_tensor(context, DType::f32, shape, random_values(seed, shape.elements()));
    };
    const Tensor q = random(1), k = random(2), v = random(3), dout = random(4);
    Tensor out = random(5), dq = random(6), dk = random(7), dv = random(8);
    Tensor lse = context.empty(DType::f32, {1, 1, tokens});
    const std::size_t tensors = context.allocator().bytes_in_use();
    context.allocator().reset_peak();
    const ops::AttentionMask mask{.scale = 0.3f, .window = window};
    ops::attention_forward(context, q, k, v, mask, out, lse);
    ops::attention_backward(context, q, k, v, out, lse, dout, mask, dq, dk, dv);
    return std::pair(ops::cpu_state(context).matmuls.size(),
                     context.allocator().peak_bytes_in_use() - tensors);
  };
  for (const std::int64_t window : {0, 100, 1500}) {
    CAPTURE(window);
    const auto [products, bytes] = used(4096, window);
    const auto [more_products, more_bytes] = used(8192, window);
    CHECK(products <= 100);
    CHECK(more_products == products);
    CHECK(more_bytes <= 2.2 * static_cast<double>(bytes));
  }
}

TEST_CASE("a product is good for as long as it is held, whatever the cache does") {
  ExecutionContext context(1);
  const auto spec = [](std::int64_t n) {
    return ops::MatmulSpec{
        .m = 1, .n = n, .k = 1, .a_row = 1, .b_row = n, .c_row = n, .single_thread = true};
  };
  const auto first = ops::find_matmul(context, spec(1));
  for (std::int64_t n = 2; n < 9000; ++n) ops::find_matmul(context, spec(n));
  CHECK(ops::cpu_state(context).matmuls.size() <= 4096);
  const float a = 3.0f, b = 5.0f;
  float c = 0.0f;
  Values scratch(first->scratch_bytes() / sizeof(double) + 1);
  first->run(ops::cpu_state(context).stream, &a, &b, &c, nullptr, scratch.data());
  CHECK(c == 15.0f);
}

}  // namespace sortie::trainer
