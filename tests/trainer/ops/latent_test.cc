// Compares the pieces of latent attention, interleaved RoPE and YaRN with f64.
#include "trainer/ops/latent.h"

#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/reference.h"
#include "trainer/ops/attention.h"

namespace sortie::trainer {
namespace {

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

/// Moves dimension 2i to i and 2i + 1 to i + half, in rows of `dims` values; `back` does the
/// reverse.
Values deinterleaved(const Values& x, std::int64_t dims, bool back) {
  Values y(x.size());
  const std::int64_t half = dims / 2, rows = static_cast<std::int64_t>(x.size()) / dims;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < dims; ++i) {
      const std::int64_t other = i / 2 + i % 2 * half;
      y[at(row * dims + (back ? i : other))] = x[at(row * dims + (back ? other : i))];
    }
  return y;
}

}  // namespace

TEST_CASE("keys of latent attention are put together and taken apart") {
  for_each_variant(false, [](const Variant& v) {
    const std::int64_t m = 37, heads = 3, own = 5, values = 4, shared = 6;
    const Values kv = random_values(v.dtype, 1, m * heads * (own + values));
    const Values rope = random_values(v.dtype, 2, m * shared);
    const Values dk = random_values(v.dtype, 3, m * heads * (own + shared));
    const Tensor kv_tensor = make_tensor(v.context, v.dtype, {m, heads, own + values}, kv, 2);
    Tensor k = make_tensor(v.context, v.dtype, {m, heads, own + shared}, {}, 1);
    ops::latent_keys_forward(v.context, kv_tensor,
                             make_tensor(v.context, v.dtype, {m, shared}, rope, 3), k);
    Tensor dkv =
        make_tensor(v.context, v.dtype, {m, heads, own + values}, Values(kv.size(), 7.0), 2);
    Tensor drope = make_tensor(v.context, v.dtype, {m, shared}, {}, 3);
    ops::latent_keys_backward(
        v.context, make_tensor(v.context, v.dtype, {m, heads, own + shared}, dk, 1), dkv, drope);
    Values expected_k, expected_dkv(kv.size(), 7.0), expected_drope(at(m * shared));
    for (std::int64_t row = 0; row < m * heads; ++row)
      for (std::int64_t i = 0; i < own + shared; ++i) {
        const double d = dk[at(row * (own + shared) + i)];
        const std::int64_t in_rope = row / heads * shared + i - own;
        expected_k.push_back(i < own ? kv[at(row * (own + values) + i)] : rope[at(in_rope)]);
        if (i < own)
          expected_dkv[at(row * (own + values) + i)] = d;
        else
          expected_drope[at(in_rope)] += d;
      }
    CHECK(values_of(k) == expected_k);
    CHECK(values_of(dkv) == expected_dkv);
    CHECK(relative_error(values_of(drope), expected_drope) <= v.tolerance);
  });
}

TEST_CASE("columns are joined") {
  for_each_variant(false, [](const Variant& v) {
    Tensor y = make_tensor(v.context, v.dtype, {2, 3}, {}, 2);
    ops::concat_columns(v.context, make_tensor(v.context, v.dtype, {2, 1}, {1, 2}, 1),
                        make_tensor(v.context, v.dtype, {2, 2}, {3, 4, 5, 6}, 3), y);
    CHECK(values_of(y) == Values{1, 3, 4, 2, 5, 6});
  });
}

TEST_CASE("interleaved RoPE is rotate-half of rearranged dimensions, and turns back") {
  for_each_variant(false, [](const Variant& v) {
    for (const std::int64_t dims : {2, 14, 64}) {
      CAPTURE(dims);
      const reference::HeadShape s{2, 37, 3, 1, dims};
      const Values x = random_values(v.dtype, 1, 2 * 37 * 3 * dims, 2.0);
      Tensor tensor = make_tensor(v.context, v.dtype, {2, 37, 3, dims}, x, 1);
      auto table = ops::make_rope_table(v.context, 37, ops::rope_frequencies(dims, 10000.0));
      table.interleaved = true;
      ops::rope(v.context, tensor, table, {}, false);
      const Values expected = deinterleaved(
          reference::rope(deinterleaved(x, dims, false), s, dims, 10000.0, 1.0), dims, true);
      CHECK(relative_error(values_of(tensor), expected) <= v.tolerance);
      ops::rope(v.context, tensor, table, {}, true);
      CHECK(relative_error(values_of(tensor), x) <= v.tolerance);
    }
  });
}

TEST_CASE("YaRN leaves fast pairs alone, slows slow ones by the factor, and ramps between") {
  const ops::Yarn yarn{40.0, 4096.0, 32.0, 1.0};
  const auto plain = ops::rope_frequencies(64, 10000.0);
  const auto scaled = ops::yarn_frequencies(64, 10000.0, yarn);
  REQUIRE(scaled.size() == 32);
  // floor and ceil of 64 ln(4096 / (2 pi beta)) / (2 ln 10000) for beta = 32 and 1
  const std::size_t low = 10, high = 23;
  for (std::size_t i = 0; i <= low; ++i) CHECK(scaled[i] == doctest::Approx(plain[i]));
  for (std::size_t i = high; i < 32; ++i) CHECK(scaled[i] == doctest::Approx(plain[i] / 40.0));
  for (std::size_t i = low + 1; i < high; ++i) {
    const double slow = static_cast<double>(i - low) / static_cast<double>(high - low);
    CHECK(scaled[i] == doctest::Approx(plain[i] * (1.0 - slow) + plain[i] / 40.0 * slow));
  }
  CHECK(ops::yarn_mscale(40.0, 1.0) == doctest::Approx(1.3688879454));
  CHECK(ops::yarn_mscale(1.0, 1.0) == 1.0);
  CHECK(ops::yarn_mscale(0.5, 2.0) == 1.0);
}

}  // namespace sortie::trainer
