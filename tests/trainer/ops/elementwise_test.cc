// Compares activations, embedding and conversions with the f64 references.
#include "trainer/ops/elementwise.h"

#include <algorithm>
#include <bit>

#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/reference.h"
#include "trainer/ops/scale.h"

namespace sortie::trainer {
namespace {

constexpr std::int64_t kRowCounts[] = {1, 7, 40};
constexpr std::int64_t kColCounts[] = {1, 16, 53, 192};

Tensor make_tokens(ExecutionContext& context, const std::vector<std::int32_t>& ids) {
  return ops::tensor_from_host<std::int32_t>(context, ids, {static_cast<std::int64_t>(ids.size())});
}

template <class Body>
void for_each_size(const Body& body) {
  for (const std::int64_t rows : kRowCounts)
    for (const std::int64_t cols : kColCounts) {
      CAPTURE(rows);
      CAPTURE(cols);
      body(rows, cols);
    }
}

}  // namespace

TEST_CASE("SwiGLU equals the reference forward and backward") {
  for_each_variant(false, [](const Variant& v) {
    for_each_size([&](std::int64_t rows, std::int64_t cols) {
      const Values gate_up = random_values(v.dtype, 1, rows * 2 * cols, 6.0);
      const Values dy = random_values(v.dtype, 2, rows * cols);
      const Tensor in = make_tensor(v.context, v.dtype, {rows, 2 * cols}, gate_up, 2);
      Tensor y = make_tensor(v.context, v.dtype, {rows, cols}, {}, 1);
      ops::swiglu_forward(v.context, in, {}, y);
      CHECK(relative_error(values_of(y), reference::swiglu(gate_up, rows, cols)) <= v.tolerance);
      Tensor d = make_tensor(v.context, v.dtype, {rows, 2 * cols}, {}, 3);
      ops::swiglu_backward(v.context, make_tensor(v.context, v.dtype, {rows, cols}, dy, 1), in, {},
                           d);
      CHECK(relative_error(values_of(d), reference::swiglu_backward(dy, gate_up, rows, cols)) <=
            v.tolerance);
    });
  });
}

TEST_CASE("GELU equals the reference forward and backward") {
  for_each_variant(false, [](const Variant& v) {
    for_each_size([&](std::int64_t rows, std::int64_t cols) {
      const Values x = random_values(v.dtype, 1, rows * cols, 6.0);
      const Values dy = random_values(v.dtype, 2, rows * cols);
      const Tensor in = make_tensor(v.context, v.dtype, {rows, cols}, x, 2);
      Tensor y = make_tensor(v.context, v.dtype, {rows, cols}, {}, 1);
      Tensor dx = make_tensor(v.context, v.dtype, {rows, cols}, {}, 3);
      for (const bool tanh : {false, true}) {
        CAPTURE(tanh);
        const auto kind = tanh ? ops::Gelu::tanh : ops::Gelu::exact;
        ops::gelu_forward(v.context, kind, in, y);
        CHECK(relative_error(values_of(y), reference::gelu(x, tanh)) <= v.tolerance);
        ops::gelu_backward(v.context, kind, make_tensor(v.context, v.dtype, {rows, cols}, dy, 1),
                           in, dx);
        CHECK(relative_error(values_of(dx), reference::gelu_backward(dy, x, tanh)) <= v.tolerance);
      }
    });
  });
}

TEST_CASE("activations hold point by point over the whole range of f32") {
  for_each_variant(false, [](const Variant& v) {
    if (v.dtype == DType::bf16) return;
    Values x;
    for (double value = -100.0; value <= 100.0; value += 0.0371) x.push_back(value);
    for (const double value : {0.0, 1e-30, -1e-30, 1e30, -1e30, 3e38, -3e38}) x.push_back(value);
    x = rounded(v.dtype, x);
    const auto count = static_cast<std::int64_t>(x.size());
    const Tensor in = make_tensor(v.context, v.dtype, {1, count}, x);
    Tensor y = v.context.empty(v.dtype, {1, count}), dx = v.context.empty(v.dtype, {1, count});
    const Values ones(x.size(), 1.0);
    const Tensor dy = make_tensor(v.context, v.dtype, {1, count}, ones);
    // The tails of the tanh form reach 0 earlier, so errors are not relative to each value.
    ops::gelu_forward(v.context, ops::Gelu::tanh, in, y);
    ops::gelu_backward(v.context, ops::Gelu::tanh, dy, in, dx);
    const Values tanh = values_of(y), tanh_slope = values_of(dx);
    const Values expected_tanh = reference::gelu(x, true),
                 expected_slope = reference::gelu_backward(ones, x, true);
    for (std::size_t i = 0; i < x.size(); ++i) {
      CAPTURE(x[i]);
      CHECK(std::abs(tanh[i] - expected_tanh[i]) <= 1e-6 * std::max(1.0, std::abs(x[i])));
      CHECK(std::abs(tanh_slope[i] - expected_slope[i]) <= 2e-6);
    }
    ops::gelu_forward(v.context, ops::Gelu::exact, in, y);
    ops::gelu_backward(v.context, ops::Gelu::exact, dy, in, dx);
    const Values expected = reference::gelu(x), slope = reference::gelu_backward(ones, x);
    const Values got = values_of(y), got_slope = values_of(dx);
    Values both = x;
    both.insert(both.end(), ones.begin(), ones.end());
    Tensor silu = v.context.empty(v.dtype, {1, count});
    ops::swiglu_forward(v.context, make_tensor(v.context, v.dtype, {1, 2 * count}, both), {}, silu);
    const Values expected_silu = reference::swiglu(both, 1, count), got_silu = values_of(silu);
    // Errors are relative to each value, in the tails too, down to where f32 underflows: on GPUs,
    // sigmoids below 2^-126 are 0, which changes SiLU by less than 88 * 2^-126.
    const auto close = [](double a, double b, double tolerance) {
      return std::abs(a - b) <= tolerance * std::abs(b) + 88 * 0x1p-126;
    };
    for (std::size_t i = 0; i < x.size(); ++i) {
      CAPTURE(x[i]);
      CHECK(close(got[i], expected[i], 1e-5));
      CHECK(std::abs(got_slope[i] - slope[i]) <= 1e-6);
      CHECK(close(got_silu[i], expected_silu[i], 1e-6));
    }
  });
}

TEST_CASE("activations keep NaN") {
  for_each_variant(false, [](const Variant& v) {
    for (const std::int64_t cols : {3, 64}) {
      const Tensor bad = make_tensor(v.context, v.dtype, {1, 2 * cols},
                                     Values(static_cast<std::size_t>(2 * cols), kNaN));
      const Tensor good = make_tensor(v.context, v.dtype, {1, 2 * cols},
                                      Values(static_cast<std::size_t>(2 * cols), 1.0));
      Tensor y = v.context.empty(v.dtype, {1, 2 * cols}),
             half = v.context.empty(v.dtype, {1, cols});
      const auto all_nan = [](const Tensor& t) {
        const Values values = values_of(t);
        return std::all_of(values.begin(), values.end(), [](double x) { return std::isnan(x); });
      };
      for (const auto kind : {ops::Gelu::exact, ops::Gelu::tanh}) {
        ops::gelu_forward(v.context, kind, bad, y);
        CHECK(all_nan(y));
        ops::gelu_backward(v.context, kind, good, bad, y);
        CHECK(all_nan(y));
        ops::gelu_backward(v.context, kind, bad, good, y);
        CHECK(all_nan(y));
      }
      ops::swiglu_forward(v.context, bad, {}, half);
      CHECK(all_nan(half));
      ops::swiglu_backward(v.context, half, good, {}, y);
      CHECK(all_nan(y));
      ops::swiglu_backward(v.context, good.slice(1, 0, cols), bad, {}, y);
      CHECK(all_nan(y));
    }
  });
}

TEST_CASE("embedding copies rows and adds their gradients in token order") {
  for_each_variant(false, [](const Variant& v) {
    const std::int64_t vocab = 11, cols = 70;
    const std::vector<std::int32_t> ids = {3, 0, 10, 3, 3, 7};
    const Tensor tokens = make_tokens(v.context, ids);
    const Values table = random_values(v.dtype, 1, vocab * cols);
    Tensor y = make_tensor(v.context, v.dtype, {6, cols}, {}, 5);
    ops::embedding_forward(v.context, tokens, make_tensor(v.context, v.dtype, {vocab, cols}, table),
                           y);
    const Values dy = random_values(v.dtype, 2, 6 * cols);
    Values expected_y, expected = random_values(DType::f32, 3, vocab * cols);
    Tensor dtable = make_tensor(v.context, DType::f32, {vocab, cols}, expected);
    for (std::size_t i = 0; i < ids.size(); ++i)
      for (std::size_t c = 0; c < 70; ++c) {
        const std::size_t cell = static_cast<std::size_t>(ids[i]) * 70 + c;
        expected_y.push_back(table[cell]);
        // Sums are in f32, in this order: equal to the last bit.
        expected[cell] = static_cast<double>(static_cast<float>(expected[cell]) +
                                             static_cast<float>(dy[i * 70 + c]));
      }
    CHECK(values_of(y) == expected_y);
    ops::embedding_backward(v.context, tokens, make_tensor(v.context, v.dtype, {6, cols}, dy, 5),
                            dtable);
    CHECK(values_of(dtable) == expected);
  });
}

TEST_CASE("parts of an embedding add up to the whole, and their gradients tile its gradient") {
  for_each_variant(false, [](const Variant& v) {
    const std::int64_t vocab = 12, cols = 20, rows = vocab / 3;
    const Tensor tokens = make_tokens(v.context, {3, 0, 11, 3, 4, 7});
    const Values table = random_values(v.dtype, 1, vocab * cols);
    const Tensor whole = make_tensor(v.context, v.dtype, {vocab, cols}, table);
    const Tensor dy =
        make_tensor(v.context, v.dtype, {6, cols}, random_values(v.dtype, 2, 6 * cols));
    Tensor y = make_tensor(v.context, v.dtype, {6, cols}, {});
    Tensor dtable = make_tensor(v.context, DType::f32, {vocab, cols}, Values(vocab * cols, 0.0));
    ops::embedding_forward(v.context, tokens, whole, y);
    ops::embedding_backward(v.context, tokens, dy, dtable);
    Values sum(6 * cols, 0.0), gradient;
    for (std::int64_t first = 0; first < vocab; first += rows) {
      Tensor part = make_tensor(v.context, v.dtype, {6, cols}, Values(6 * cols, 9.0));
      ops::embedding_forward(v.context, tokens, whole.slice(0, first, rows), part, {first, vocab});
      const Values values = values_of(part);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
      Tensor dpart = make_tensor(v.context, DType::f32, {rows, cols}, Values(rows * cols, 0.0));
      ops::embedding_backward(v.context, tokens, dy, dpart, {first, vocab});
      const Values dvalues = values_of(dpart);
      gradient.insert(gradient.end(), dvalues.begin(), dvalues.end());
    }
    CHECK(sum == values_of(y));
    CHECK(gradient == values_of(dtable));
  });
}

TEST_CASE("add is the rounded sum, also into one of its inputs") {
  for_each_variant(false, [](const Variant& v) {
    const Values a = random_values(v.dtype, 1, 5 * 33), b = random_values(v.dtype, 2, 5 * 33);
    Values sum = a;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
    sum = rounded(v.dtype, sum);
    Tensor first = make_tensor(v.context, v.dtype, {5, 33}, a, 4);
    Tensor second = make_tensor(v.context, v.dtype, {5, 33}, b, 2);
    Tensor y = make_tensor(v.context, v.dtype, {5, 33}, {}, 1);
    ops::add(v.context, first, second, y);
    CHECK(values_of(y) == sum);
    ops::add(v.context, first, second, second);
    CHECK(values_of(second) == sum);
  });
}

TEST_CASE("elements of aligned rows, of odd ones and past every block are all reached") {
  for_each_variant(false, [](const Variant& v) {
    struct Case {
      std::int64_t rows, cols, gap;
    };
    // Rows for 16-byte accesses with and without a tail, and unaligned rows; more than 2^16 rows;
    // one row of many blocks.
    for (const Case& c : {Case{3, 64, 8}, Case{3, 61, 8}, Case{5, 264, 1}, Case{66000, 2, 1},
                          Case{1, 4099, 0}, Case{2, 2056, 16}}) {
      CAPTURE(c.cols);
      CAPTURE(c.gap);
      const Values a = random_values(v.dtype, 1, c.rows * c.cols, 4.0);
      const Values b = random_values(v.dtype, 2, c.rows * c.cols, 4.0);
      Values sum = a;
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
      const Tensor first = make_tensor(v.context, v.dtype, {c.rows, c.cols}, a, c.gap);
      const Tensor second = make_tensor(v.context, v.dtype, {c.rows, c.cols}, b, c.gap);
      Tensor y = make_tensor(v.context, v.dtype, {c.rows, c.cols}, {}, c.gap);
      ops::add(v.context, first, second, y);
      CHECK(values_of(y) == rounded(v.dtype, sum));
      if (c.rows > 5) continue;
      ops::gelu_backward(v.context, ops::Gelu::exact, second, first, y);
      CHECK(relative_error(values_of(y), reference::gelu_backward(b, a)) <= v.tolerance);
    }
  });
}

TEST_CASE("SwiGLU of a number of rows that the device knows leaves the others alone") {
  for_each_variant(false, [](const Variant& v) {
    for (const std::int64_t counted : {0, 3, 7}) {
      CAPTURE(counted);
      const Tensor rows =
          ops::tensor_from_host<std::int64_t>(v.context, std::span(&counted, 1), {1});
      const Values gate_up = random_values(v.dtype, 1, 7 * 32),
                   dy = random_values(v.dtype, 2, 7 * 16);
      const Tensor in = make_tensor(v.context, v.dtype, {7, 32}, gate_up);
      Tensor y = make_tensor(v.context, v.dtype, {7, 16}, Values(7 * 16, 9.0));
      Tensor d = make_tensor(v.context, v.dtype, {7, 32}, Values(7 * 32, 9.0));
      ops::swiglu_forward(v.context, in, rows, y);
      ops::swiglu_backward(v.context, make_tensor(v.context, v.dtype, {7, 16}, dy), in, rows, d);
      Values expected = reference::swiglu(gate_up, 7, 16),
             slopes = reference::swiglu_backward(dy, gate_up, 7, 16);
      std::fill(expected.begin() + counted * 16, expected.end(), 9.0);
      std::fill(slopes.begin() + counted * 32, slopes.end(), 9.0);
      CHECK(relative_error(values_of(y), expected) <= v.tolerance);
      CHECK(relative_error(values_of(d), slopes) <= v.tolerance);
    }
  });
}

TEST_CASE("scale multiplies every element, also in place") {
  for_each_variant(false, [](const Variant& v) {
    for (const std::int64_t first : {0, 1}) {
      const Values x = random_values(v.dtype, 1, 300);
      const Tensor all = make_tensor(v.context, v.dtype, {300}, x);
      Tensor part = all.slice(0, first, 299), y = v.context.empty(v.dtype, {299});
      Values expected(x.begin() + first, x.begin() + first + 299);
      for (double& value : expected) value *= 0.75;
      expected = rounded(v.dtype, expected);
      ops::scale(v.context, part, 0.75f, y);
      CHECK(values_of(y) == expected);
      ops::scale(v.context, part, 0.75f, part);
      CHECK(values_of(part) == expected);
    }
  });
}

TEST_CASE("an embedding's gradients of many tokens are added row by row in token order") {
  for_each_variant(false, [](const Variant& v) {
    // One token repeats often, and there are more tokens than are sorted at once.
    const std::int64_t vocab = 40, cols = 8, count = 2500;
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < count; ++i)
      ids.push_back(i % 3 == 0 ? 17 : static_cast<std::int32_t>(i * i * 7919 % vocab));
    const Values dy = random_values(v.dtype, 2, count * cols);
    Values expected = random_values(DType::f32, 3, vocab * cols);
    Tensor dtable = make_tensor(v.context, DType::f32, {vocab, cols}, expected);
    const Tensor tokens = make_tokens(v.context, ids);
    const Tensor gradient = make_tensor(v.context, v.dtype, {count, cols}, dy);
    Tensor part = v.context.zeros(DType::f32, {10, cols});
    ops::embedding_backward(v.context, tokens, gradient, dtable);
    ops::embedding_backward(v.context, tokens, gradient, part, {10, vocab});
    Values of_part(10 * 8, 0.0);
    for (std::size_t i = 0; i < ids.size(); ++i)
      for (std::size_t c = 0; c < 8; ++c) {
        const auto add = [&](double& sum) {
          sum = static_cast<double>(static_cast<float>(sum) + static_cast<float>(dy[i * 8 + c]));
        };
        add(expected[static_cast<std::size_t>(ids[i]) * 8 + c]);
        if (ids[i] >= 10 && ids[i] < 20)
          add(of_part[static_cast<std::size_t>(ids[i] - 10) * 8 + c]);
      }
    CHECK(values_of(dtable) == expected);
    CHECK(values_of(part) == of_part);
  });
}

TEST_CASE("convert rounds to nearest even and keeps NaN, Inf and denormals as bf16(float) does") {
  for_each_variant(false, [](const Variant& v) {
    if (v.dtype == DType::bf16) return;
    std::vector<std::uint32_t> bits;
    for (std::uint64_t wide = 0; wide < (std::uint64_t{1} << 32); wide += 65521)
      bits.push_back(static_cast<std::uint32_t>(wide));
    for (const std::uint32_t special : {0x7f800000u, 0xff800000u, 0x7f800001u, 0x7fc00000u,
                                        0xffffffffu, 0x7f7fffffu, 0x3f808000u, 0x3f818000u, 1u})
      bits.push_back(special);
    const auto count = static_cast<std::int64_t>(bits.size());
    std::vector<float> values(bits.size());
    std::memcpy(values.data(), bits.data(), bits.size() * 4);
    const Tensor wide = ops::tensor_from_host<float>(v.context, values, {count});
    Tensor narrow = v.context.empty(DType::bf16, {count}),
           back = v.context.empty(DType::f32, {count});
    ops::convert(v.context, wide, narrow);
    ops::convert(v.context, narrow, back);
    const auto narrow_values = ops::copy_to_host<bf16>(v.context, narrow);
    const auto back_values = ops::copy_to_host<float>(v.context, back);
    bool equal = true;
    for (std::size_t i = 0; i < bits.size(); ++i) {
      const std::uint32_t got = narrow_values[i].bits;
      equal = equal && std::bit_cast<std::uint32_t>(back_values[i]) == got << 16;
      // A GPU produces a single NaN pattern.
      if (test::on_gpu() && std::isnan(values[i]))
        equal = equal && std::isnan(back_values[i]);
      else
        equal = equal && got == bf16(values[i]).bits;
    }
    CHECK(equal);
  });
}

}  // namespace sortie::trainer
