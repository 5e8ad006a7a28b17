// Compares attention of the newest tokens over cached keys with the reference over the whole
// sequence.
#include "trainer/ops/attention_cached.h"

#include "tests/trainer/ops/op_test.h"
#include "tests/trainer/ops/reference.h"
#include "trainer/ops/copy.h"

namespace sortie::trainer {
namespace {

struct CachedCase {
  reference::HeadShape shape;  // of all tokens
  std::int64_t newest, window;
};

// One and several new tokens, all tokens, and more than a tile of new tokens; groups of heads;
// windows that begin anywhere; values of a different width; lengths whose keys are divided into
// ranges.
constexpr CachedCase kCachedCases[] = {
    {{1, 1, 2, 1, 8, 0}, 1, 0},     {{2, 9, 4, 2, 16, 0}, 1, 0},    {{2, 40, 4, 1, 64, 0}, 3, 0},
    {{1, 33, 2, 2, 24, 16}, 33, 0}, {{1, 70, 12, 1, 8, 0}, 20, 9},  {{1, 700, 4, 2, 8, 0}, 1, 0},
    {{2, 530, 6, 2, 32, 8}, 2, 0},  {{1, 900, 2, 1, 8, 0}, 5, 600}, {{1, 600, 2, 2, 7, 0}, 1, 0},
};

}  // namespace

TEST_CASE("attention over kept keys equals the last rows of the reference") {
  std::vector<Values> expected[2];
  for_each_variant(false, [&](const Variant& v) {
    std::vector<Values>& known = expected[v.dtype == DType::bf16];
    for (std::size_t i = 0; i < std::size(kCachedCases); ++i) {
      const auto& [s, newest, window] = kCachedCases[i];
      CAPTURE(s.tokens);
      CAPTURE(newest);
      CAPTURE(window);
      const std::int64_t width = s.value_dims != 0 ? s.value_dims : s.dims;
      const auto random = [&](std::uint64_t seed, std::int64_t columns) {
        return random_values(v.dtype, seed, s.batch * s.tokens * columns, 2.0);
      };
      const Values q = random(1, s.heads * s.dims), k = random(2, s.key_heads * s.dims),
                   values = random(3, s.key_heads * width);
      if (known.size() == i) {
        reference::Mask mask;
        mask.sees = [window = window](std::int64_t, std::int64_t row, std::int64_t key) {
          return window == 0 || row - key < window;
        };
        known.push_back(reference::attention(q, k, values, s, 0.3, mask).out);
      }
      const auto make = [&](const Values& of, std::int64_t heads, std::int64_t dims) {
        return make_tensor(v.context, v.dtype, {s.batch, s.tokens, heads, dims}, of);
      };
      const auto last = [&, newest = newest](const Tensor& x) {
        return x.slice(1, s.tokens - newest, newest);
      };
      Tensor out = last(make({}, s.heads, width));
      ops::attention_cached(v.context, last(make(q, s.heads, s.dims)), make(k, s.key_heads, s.dims),
                            make(values, s.key_heads, width), {.scale = 0.3f, .window = window},
                            out);
      Values rows;
      const auto row = static_cast<std::size_t>(s.heads * width);
      for (std::int64_t b = 0; b < s.batch; ++b) {
        const auto end = known[i].begin() + static_cast<std::ptrdiff_t>(
                                                static_cast<std::size_t>((b + 1) * s.tokens) * row);
        rows.insert(rows.end(),
                    end - static_cast<std::ptrdiff_t>(static_cast<std::size_t>(newest) * row), end);
      }
      CHECK(relative_error(values_of(out), rows) <= v.tolerance);
    }
  });
}

TEST_CASE("attention over kept keys has the same bits every time") {
  for (const DType dtype : product_dtypes())
    check_same_bits(kAnyThreads, [&](ExecutionContext& context) {
      const auto random = [&](std::uint64_t seed, const Shape& shape) {
        return make_tensor(context, dtype, shape, random_values(dtype, seed, shape.elements()));
      };
      Tensor out = context.empty(dtype, {1, 1, 4, 16});
      ops::attention_cached(context, random(1, {1, 1, 4, 16}), random(2, {1, 600, 2, 16}),
                            random(3, {1, 600, 2, 16}), {.scale = 0.25f}, out);
      return values_of(out);
    });
}

TEST_CASE("the place of the newest tokens is read where the keys are") {
  for_each_variant(false, [](const Variant& v) {
    const reference::HeadShape s{1, 40, 4, 2, 16, 0};
    const std::int32_t known = 27, newest = 3;
    const auto random = [&](std::uint64_t seed, std::int64_t tokens, std::int64_t heads) {
      return make_tensor(v.context, v.dtype, {s.batch, tokens, heads, s.dims},
                         random_values(v.dtype, seed, s.batch * tokens * heads * s.dims));
    };
    const Tensor keys = random(1, s.tokens, s.key_heads), values = random(2, s.tokens, s.key_heads);
    const Tensor q = random(3, newest, s.heads);
    Tensor told = random(4, newest, s.heads), read = random(5, newest, s.heads);
    ops::AttentionMask mask{.scale = 0.3f, .window = 9};
    const std::int64_t all = known + newest;
    ops::attention_cached(v.context, q, keys.slice(1, 0, all), values.slice(1, 0, all), mask, told);
    mask.place = v.context.empty(DType::i32, {1});
    ops::write_scalar<std::int32_t>(v.context, known, mask.place);
    ops::attention_cached(v.context, q, keys, values, mask, read);
    CHECK(values_of(read) == values_of(told));

    // Rows are copied to the place and nowhere else.
    Tensor to = v.context.zeros(v.dtype, {s.batch, s.tokens, s.heads, s.dims});
    ops::copy_to_place(v.context, q, mask.place, to);
    CHECK(values_of(to.slice(1, known, newest)) == values_of(q));
    CHECK(values_of(to.slice(1, 0, known)) ==
          Values(static_cast<std::size_t>(known * s.heads * s.dims)));
    CHECK(values_of(to.slice(1, all, s.tokens - all)) ==
          Values(static_cast<std::size_t>((s.tokens - all) * s.heads * s.dims)));
  });
}

}  // namespace sortie::trainer
