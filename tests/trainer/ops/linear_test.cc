// Compares linear products with the f64 reference.
#include "trainer/ops/linear.h"

#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/reference.h"

namespace sortie::trainer {
namespace {

struct Size {
  std::int64_t m, n, k;
};
constexpr Size kSizes[] = {{1, 1, 1},     {1, 64, 32},   {3, 5, 7},
                           {64, 96, 128}, {33, 131, 56}, {130, 70, 257}};

}  // namespace

TEST_CASE("linear forward equals the reference, dense and strided, with and without bias") {
  for_each_variant(true, [](const Variant& v) {
    for (const auto [m, n, k] : kSizes)
      for (const bool with_bias : {false, true})
        for (const std::int64_t gap : {0, 8}) {
          CAPTURE(m);
          CAPTURE(n);
          CAPTURE(k);
          CAPTURE(gap);
          const Values x = random_values(v.dtype, 1, m * k), w = random_values(v.dtype, 2, n * k);
          const Values b = with_bias ? random_values(DType::f32, 3, n) : Values();
          const Values expected = reference::linear(x, w, b, m, n, k);
          const ops::PackedWeight weight(make_tensor(v.context, v.dtype, {n, k}, w));
          const Tensor bias = with_bias ? make_tensor(v.context, DType::f32, {n}, b) : Tensor();
          for (const DType out : {v.dtype, DType::f32}) {
            Tensor y = make_tensor(v.context, out, {m, n}, {}, gap);
            ops::linear_forward(v.context, make_tensor(v.context, v.dtype, {m, k}, x, gap), weight,
                                bias, y);
            CHECK(relative_error(values_of(y), expected) <= v.tolerance);
          }
        }
  });
}

TEST_CASE("linear backward equals the reference and adds to dw and dbias") {
  for_each_variant(true, [](const Variant& v) {
    for (const auto [m, n, k] : kSizes)
      for (const std::int64_t gap : {0, 8}) {
        CAPTURE(m);
        CAPTURE(n);
        CAPTURE(k);
        CAPTURE(gap);
        const Values x = random_values(v.dtype, 1, m * k), w = random_values(v.dtype, 2, n * k);
        const Values dy = random_values(v.dtype, 4, m * n);
        auto expected = reference::linear_backward(dy, x, w, m, n, k);
        const ops::PackedWeight weight(make_tensor(v.context, v.dtype, {n, k}, w));
        const Tensor dy_t = make_tensor(v.context, v.dtype, {m, n}, dy, gap);
        const Tensor x_t = make_tensor(v.context, v.dtype, {m, k}, x, gap);

        Tensor dx = make_tensor(v.context, v.dtype, {m, k}, {}, gap);
        ops::linear_backward_data(v.context, dy_t, weight, dx);
        CHECK(relative_error(values_of(dx), expected.dx) <= v.tolerance);

        // Weight gradients are f32 sums of exact products of the inputs, whatever their dtype.
        const Values before = random_values(DType::f32, 5, n * k);
        Tensor dw = make_tensor(v.context, DType::f32, {n, k}, before);
        Tensor dbias =
            make_tensor(v.context, DType::f32, {n}, Values(static_cast<std::size_t>(n), 2.0));
        ops::linear_backward_weight(v.context, dy_t, x_t, dw, dbias);
        for (std::size_t i = 0; i < before.size(); ++i) expected.dw[i] += before[i];
        for (double& value : expected.dbias) value += 2.0;
        CHECK(relative_error(values_of(dw), expected.dw) <= 1e-5);
        CHECK(relative_error(values_of(dbias), expected.dbias) <= 1e-5);
        Tensor none;
        ops::linear_backward_weight(v.context, dy_t, x_t, dw, none);
        // Old values, NaN included, are replaced.
        expected = reference::linear_backward(dy, x, w, m, n, k);
        Tensor replaced = make_tensor(v.context, DType::f32, {n, k},
                                      Values(static_cast<std::size_t>(n * k), std::nan("")));
        ops::linear_backward_weight(v.context, dy_t, x_t, replaced, none, ops::WriteMode::replace);
        CHECK(relative_error(values_of(replaced), expected.dw) <= 1e-5);
      }
  });
}

TEST_CASE("a changed weight is packed again, an unchanged one is not read") {
  for_each_variant(true, [](const Variant& v) {
    const std::int64_t m = 40, n = 64, k = 96;
    const Values x = random_values(v.dtype, 1, m * k), dy = random_values(v.dtype, 2, m * n);
    const Values first = random_values(v.dtype, 3, n * k),
                 second = random_values(v.dtype, 4, n * k);
    Tensor plain = v.context.empty(v.dtype, {n, k});
    ops::PackedWeight weight(plain);
    const Tensor x_t = make_tensor(v.context, v.dtype, {m, k}, x);
    const Tensor dy_t = make_tensor(v.context, v.dtype, {m, n}, dy);
    Tensor y = v.context.empty(DType::f32, {m, n}), dx = v.context.empty(DType::f32, {m, k});
    for (const Values& w : {first, second}) {
      ops::copy_bytes_from_host(v.context, memory_of(make_tensor(v.context, v.dtype, {n, k}, w)),
                                plain);
      ops::weight_changed(v.context, weight);
      ops::linear_forward(v.context, x_t, weight, Tensor(), y);
      ops::linear_backward_data(v.context, dy_t, weight, dx);
      CHECK(relative_error(values_of(y), reference::linear(x, w, {}, m, n, k)) <= 1e-5);
      CHECK(relative_error(values_of(dx), reference::linear_backward(dy, x, w, m, n, k).dx) <=
            1e-5);
    }
  });
}

TEST_CASE("long products poll more than once and give the rows of the short ones") {
  // Products of several pieces of work. Row r of x selects column 7 r of w.
  const DType dtype = cpu_facts().multiplies_bf16 ? DType::bf16 : DType::f32;
  const std::int64_t m = 1536, n = 4096, k = 4096;
  ExecutionContext context(2);
  const Tensor x = context.zeros(dtype, {m, k});
  for (std::int64_t r = 0; r < m; ++r) set_element(x.raw(), dtype, r * k + r * 7 % k, 1.0);
  const Tensor w = make_tensor(context, dtype, {n, k}, random_values(dtype, 1, n * k));
  const ops::PackedWeight weight(w);
  int polls = 0;
  context.set_poll([&polls] { ++polls; });
  Tensor y = context.empty(dtype, {m, n});
  ops::linear_forward(context, x, weight, Tensor(), y);
  CHECK(polls > 1);
  Tensor dw = context.zeros(DType::f32, {n, k}), none;
  polls = 0;
  ops::linear_backward_weight(context, y, x, dw, none);
  CHECK(polls > 1);
  bool equal = true;
  for (std::int64_t r = 0; r < m; ++r)
    for (std::int64_t c = 0; c < n; c += 37)
      equal =
          equal && element(y.raw(), dtype, r * n + c) == element(w.raw(), dtype, c * k + r * 7 % k);
  CHECK(equal);
}

TEST_CASE("repeated products ask the system for no memory") {
  for (const DType dtype : product_dtypes()) {
    ExecutionContext context(2, test::device());
    const std::int64_t m = 96, n = 2200, k = 64;
    ops::PackedWeight weight(make_tensor(context, dtype, {n, k}, random_values(dtype, 1, n * k)));
    const Tensor x = make_tensor(context, dtype, {m, k}, random_values(dtype, 2, m * k));
    const Tensor targets = context.zeros(DType::i32, {m});
    Tensor dw = context.zeros(DType::f32, {n, k}), none;
    const auto step = [&] {
      Tensor y = context.empty(dtype, {m, n}), dx = context.empty(dtype, {m, k});
      ops::linear_forward(context, x, weight, Tensor(), y);
      ops::linear_backward_data(context, y, weight, dx);
      ops::linear_backward_weight(context, y, x, dw, none);
      Tensor loss = context.zeros(DType::f64, {2});
      ops::linear_cross_entropy(context, x, weight, targets, {.vocab_size = n, .grad_scale = 1.0f},
                                dx, dw, loss);
      ops::weight_changed(context, weight);
    };
    step();
    step();
    const std::size_t after_two = context.allocator().system_allocations();
    for (int i = 0; i < 5; ++i) step();
    CHECK(context.allocator().system_allocations() == after_two);
  }
}

TEST_CASE("views that begin anywhere and odd rows are multiplied as others are") {
  for_each_variant(true, [](const Variant& v) {
    for (const std::int64_t gap : {1, 3, 4})
      for (const auto [m, n, k] : {Size{20, 33, 24}, Size{300, 16, 9}}) {
        CAPTURE(gap);
        CAPTURE(m);
        const Values x = random_values(v.dtype, 1, m * k), w = random_values(v.dtype, 2, n * k);
        const Values b = random_values(DType::f32, 3, n), dy = random_values(v.dtype, 4, m * n);
        const auto expected = reference::linear_backward(dy, x, w, m, n, k);
        const ops::PackedWeight weight(make_tensor(v.context, v.dtype, {n, k}, w));
        const Tensor x_t = make_tensor(v.context, v.dtype, {m, k}, x, gap);
        const Tensor dy_t = make_tensor(v.context, v.dtype, {m, n}, dy, gap);
        const Tensor bias = make_tensor(v.context, DType::f32, {1, n}, b, gap).view({n});
        Tensor y = make_tensor(v.context, DType::f32, {m, n}, {}, gap);
        Tensor dx = make_tensor(v.context, v.dtype, {m, k}, {}, gap);
        Tensor dw = v.context.zeros(DType::f32, {n, k}), dbias = v.context.zeros(DType::f32, {n});
        ops::linear_forward(v.context, x_t, weight, bias, y);
        ops::linear_backward_data(v.context, dy_t, weight, dx);
        ops::linear_backward_weight(v.context, dy_t, x_t, dw, dbias);
        CHECK(relative_error(values_of(y), reference::linear(x, w, b, m, n, k)) <= 1e-5);
        CHECK(relative_error(values_of(dx), expected.dx) <= v.tolerance);
        CHECK(relative_error(values_of(dw), expected.dw) <= 1e-5);
        CHECK(relative_error(values_of(dbias), expected.dbias) <= 1e-5);
      }
  });
}

TEST_CASE("a NaN in x or dy reaches what depends on it") {
  for_each_variant(true, [](const Variant& v) {
    const std::int64_t m = 5, n = 6, k = 8;
    Values x = random_values(v.dtype, 1, m * k), dy = random_values(v.dtype, 2, m * n);
    x[11] = kNaN;
    dy[13] = kNaN;
    const ops::PackedWeight weight(
        make_tensor(v.context, v.dtype, {n, k}, random_values(v.dtype, 3, n * k)));
    const Tensor x_t = make_tensor(v.context, v.dtype, {m, k}, x);
    const Tensor dy_t = make_tensor(v.context, v.dtype, {m, n}, dy);
    Tensor y = v.context.empty(v.dtype, {m, n}), dx = v.context.empty(v.dtype, {m, k});
    Tensor dw = v.context.zeros(DType::f32, {n, k}), dbias = v.context.zeros(DType::f32, {n});
    ops::linear_forward(v.context, x_t, weight, Tensor(), y);
    ops::linear_backward_data(v.context, dy_t, weight, dx);
    ops::linear_backward_weight(v.context, dy_t, x_t, dw, dbias);
    for (const Tensor& result : {y, dx, dw, dbias}) CHECK_FALSE(all_finite(values_of(result)));
  });
}

TEST_CASE("linear products give the same bits on any number of threads") {
  for (const DType dtype : product_dtypes()) {
    CAPTURE(std::string(dtype_name(dtype)));
    check_same_bits(product_threads(), [&](ExecutionContext& context) {
      const std::int64_t m = 200, n = 300, k = 144;
      const ops::PackedWeight weight(
          make_tensor(context, dtype, {n, k}, random_values(dtype, 1, n * k)));
      const Tensor x = make_tensor(context, dtype, {m, k}, random_values(dtype, 2, m * k));
      const Tensor dy = make_tensor(context, dtype, {m, n}, random_values(dtype, 3, m * n));
      Tensor y = context.empty(dtype, {m, n}), dx = context.empty(dtype, {m, k});
      Tensor dw = context.zeros(DType::f32, {n, k}), dbias = context.zeros(DType::f32, {n});
      ops::linear_forward(context, x, weight, Tensor(), y);
      ops::linear_backward_data(context, dy, weight, dx);
      ops::linear_backward_weight(context, dy, x, dw, dbias);
      Values all;
      for (const Tensor& result : {y, dx, dw, dbias}) {
        const Values values = values_of(result);
        all.insert(all.end(), values.begin(), values.end());
      }
      return all;
    });
  }
}

}  // namespace sortie::trainer
