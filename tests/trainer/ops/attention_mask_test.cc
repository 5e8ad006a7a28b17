// Compares attention with windows, documents, dropout and value heads of a different width with the
// f64 reference.
#include "tests/trainer/ops/attention_case.h"

namespace sortie::trainer {
namespace {

using reference::HeadShape;

// Windows below, at and above a row block and the whole length; one token; one key head.
constexpr AttentionCase kMaskCases[] = {
    {{1, 1, 1, 1, 8, 0}, 4, 0, 0.0f},     {{2, 9, 2, 1, 16, 0}, 4, 0, 0.0f},
    {{1, 130, 2, 2, 24, 0}, 64, 0, 0.0f}, {{1, 150, 2, 1, 56, 0}, 70, 0, 0.0f},
    {{2, 20, 4, 2, 8, 0}, 256, 0, 0.0f},  {{2, 140, 2, 2, 8, 0}, 1, 0, 0.0f},
    {{2, 75, 3, 1, 24, 16}, 0, 0, 0.0f},  {{1, 10, 2, 2, 8, 12}, 3, 0, 0.0f},
    {{2, 77, 2, 1, 16, 0}, 0, 10, 0.0f},  {{2, 77, 2, 1, 16, 0}, 7, 30, 0.0f},
    {{2, 70, 4, 2, 16, 8}, 0, 0, 0.3f},   {{2, 90, 2, 1, 8, 0}, 50, 33, 0.5f},
};

}  // namespace

TEST_CASE("masked attention equals the reference forward and backward") {
  KnownAttention known;
  for_each_variant(true, [&](const Variant& v) {
    for (const AttentionCase& c : kMaskCases) check_attention(v, c, known);
  });
}

TEST_CASE("RoPE turns by the given positions") {
  for_each_variant(false, [](const Variant& v) {
    const HeadShape s{2, 6, 2, 1, 8, 0};
    const Values x = random_values(v.dtype, 1, s.batch * s.tokens * s.heads * s.dims);
    const Shape shape{s.batch, s.tokens, s.heads, s.dims};
    const auto table = ops::make_rope_table(v.context, 8, ops::rope_frequencies(4, 100.0));
    Tensor plain = make_tensor(v.context, v.dtype, shape, x);
    ops::rope(v.context, plain, table, {}, false);
    // Positions that restart every three tokens: all tokens are rotated as the first three are.
    std::vector<std::int32_t> places;
    for (int i = 0; i < 12; ++i) places.push_back(i % 3);
    const Tensor positions =
        ops::tensor_from_host<std::int32_t>(v.context, places, {s.batch, s.tokens});
    Tensor reset = make_tensor(v.context, v.dtype, shape, x);
    ops::rope(v.context, reset, table, positions, false);
    const Values a = values_of(plain), b = values_of(reset);
    CHECK(std::equal(a.begin(), a.begin() + 3 * 16, b.begin()));
    CHECK(a != b);
    // Token t of the first half holds what token 3 + t held.
    Values early(x.size(), 0.0);
    for (std::size_t i = 0; i < x.size(); ++i)
      if (i / 16 % 6 < 3) early[i] = x[i + 3 * 16];
    Tensor again = make_tensor(v.context, v.dtype, shape, early);
    ops::rope(v.context, again, table, {}, false);
    const Values moved = values_of(again);
    CHECK(std::equal(moved.begin(), moved.begin() + 3 * 16, b.begin() + 3 * 16));
  });
}

TEST_CASE("dropout keeps the share it should and depends on key, sample and place alone") {
  for_each_variant(false, [](const Variant& v) {
    const std::int64_t samples = 3, count = 40000;
    const Tensor ones = make_tensor(v.context, v.dtype, {samples, count},
                                    Values(static_cast<std::size_t>(samples * count), 1.0));
    Tensor y = v.context.empty(v.dtype, {samples, count});
    const ops::Dropout drop{0.25f, 99, 7};
    ops::dropout(v.context, drop, samples, ones, y);
    const Values all = values_of(y);
    for (std::int64_t b = 0; b < samples; ++b) {
      double kept = 0, neighbours = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const double value = all[static_cast<std::size_t>(b * count + i)];
        CHECK((value == 0.0 || std::abs(value - 4.0 / 3.0) <= v.tolerance));
        kept += value > 0;
        if (i > 0) neighbours += value > 0 && all[static_cast<std::size_t>(b * count + i - 1)] > 0;
      }
      // Limits of five standard deviations.
      const auto n = static_cast<double>(count);
      CHECK(std::abs(kept / n - 0.75) <= 5 * std::sqrt(0.75 * 0.25 / n));
      CHECK(std::abs(neighbours / n - 0.5625) <= 5 * std::sqrt(0.5625 * 0.4375 * 2 / n));
    }
    // Sample 2 of a batch that begins at sample 7 is sample 0 of a batch that begins at 9.
    Tensor one = v.context.empty(v.dtype, {1, count});
    ops::dropout(v.context, {0.25f, 99, 9}, 1, ones.slice(0, 2, 1), one);
    CHECK(values_of(one) == Values(all.begin() + 2 * count, all.end()));
    ops::dropout(v.context, {0.25f, 98, 9}, 1, ones.slice(0, 2, 1), one);
    CHECK(values_of(one) != Values(all.begin() + 2 * count, all.end()));
  });
}

TEST_CASE(
    "dropout is the same on every device and for a sample in parts, also past 2^32 elements") {
  for_each_variant(false, [](const Variant& v) {
    const std::int64_t count = 1001, first = (std::int64_t{1} << 32) - 500;
    const Values x = random_values(v.dtype, 1, 2 * count);
    const auto dropped = [&](ExecutionContext& context) {
      const Tensor in = make_tensor(context, v.dtype, {2, count}, x);
      Tensor y = context.empty(v.dtype, {2, count});
      ops::dropout(context, {0.3f, 5, 1, first}, 2, in, y);
      return values_of(y);
    };
    ExecutionContext cpu(1);
    const Values whole = dropped(v.context);
    CHECK(whole == dropped(cpu));
    const Tensor in = make_tensor(v.context, v.dtype, {2 * count}, x);
    for (const std::int64_t begin : {0, 3, 499, 503}) {
      Tensor y = v.context.empty(v.dtype, {100});
      ops::dropout(v.context, {0.3f, 5, 2, first + begin}, 1, in.slice(0, count + begin, 100), y);
      const auto part = whole.begin() + count + begin;
      CHECK(values_of(y) == Values(part, part + 100));
    }
  });
}

}  // namespace sortie::trainer
