// Tests of positions and documents of tokens, fills, copies and random numbers.
#include "trainer/ops/tokens.h"

#include "tests/trainer/ops/op_test.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/linear.h"
#include "trainer/random/random.h"

namespace sortie::trainer {
namespace {

using Ids = std::vector<std::int32_t>;

Tensor ids_of(ExecutionContext& context, const Ids& values, Shape shape) {
  return ops::tensor_from_host<std::int32_t>(context, values, shape);
}
Ids read(ExecutionContext& context, const Tensor& ids) {
  return ops::copy_to_host<std::int32_t>(context, ids);
}

}  // namespace

TEST_CASE("documents start behind their end token, anew in every sequence") {
  ExecutionContext context(1, test::device());
  const Tensor tokens = ids_of(context, {1, 7, 2, 7, 7, 3, 4, 5, 6, 7}, {2, 5});
  Tensor starts = context.empty(DType::i32, {2, 5}), positions = context.empty(DType::i32, {2, 5});
  ops::find_documents(context, tokens, 7, {}, starts, positions);
  CHECK(read(context, starts) == Ids{0, 0, 2, 2, 4, 0, 0, 0, 0, 0});
  CHECK(read(context, positions) == Ids{0, 1, 0, 1, 0, 0, 1, 2, 3, 4});
  const auto end = ops::kDocumentEnds, none = ops::kNoTarget;
  const Tensor targets = ids_of(context, {end, 2, none, none, end, end, 4, none, 0, end}, {2, 5});
  ops::find_documents(context, tokens, -1, targets, starts, positions);
  CHECK(read(context, starts) == Ids{0, 1, 1, 1, 1, 0, 1, 1, 1, 1});
  CHECK(read(context, positions) == Ids{0, 0, 1, 2, 3, 0, 0, 1, 2, 3});
  ops::find_documents(context, tokens, 7, targets, starts, positions);
  CHECK(read(context, starts) == Ids{0, 1, 2, 2, 4, 0, 1, 1, 1, 1});
  ops::count_positions(context, 3, positions);
  CHECK(read(context, positions) == Ids{3, 4, 5, 6, 7, 3, 4, 5, 6, 7});
}

TEST_CASE("documents of long sequences start where their tokens say") {
  ExecutionContext context(1, test::device());
  // Lengths around the size of the pieces that a GPU block processes.
  for (const std::int64_t length : {1, 4095, 4097, 9000}) {
    CAPTURE(length);
    Ids ids, starts, places;
    std::int32_t start = 0;
    for (std::int64_t i = 0; i < 2 * length; ++i) {
      const auto t = static_cast<std::int32_t>(i % length);
      // Ends are close together at first, then further apart than the positions of a thread and of
      // a warp.
      ids.push_back(t % (t < 100 ? 3 : 1700) == 1 ? 7 : 1);
      start = t == 0 ? 0 : ids[static_cast<std::size_t>(i - 1)] == 7 ? t : start;
      starts.push_back(start);
      places.push_back(t - start);
    }
    const Tensor tokens = ids_of(context, ids, {2, length});
    Tensor found = context.empty(DType::i32, {2, length}),
           positions = context.empty(DType::i32, {2, length});
    ops::find_documents(context, tokens, 7, {}, found, positions);
    CHECK(read(context, found) == starts);
    CHECK(read(context, positions) == places);
    Tensor none;
    ops::fill(context, -1, found);
    ops::find_documents(context, tokens, 7, {}, found, none);
    CHECK(read(context, found) == starts);
    Ids marks;
    for (const std::int32_t id : ids) marks.push_back(id == 7 ? ops::kDocumentEnds : id);
    ops::fill(context, -1, found);
    ops::find_documents(context, tokens, -1, ids_of(context, marks, {2, length}), found, none);
    CHECK(read(context, found) == starts);
  }
}

TEST_CASE("shifted tokens do not cross the end of a sequence or a document") {
  ExecutionContext context(1, test::device());
  const Tensor tokens = ids_of(context, {1, 2, 3, 4, 5, 6, 7, 8}, {2, 4});
  const Tensor starts = ids_of(context, {0, 0, 2, 2, 0, 0, 0, 0}, {2, 4});
  Tensor shifted = context.empty(DType::i32, {2, 4});
  ops::shift_tokens(context, tokens, {}, 1, -1, shifted);
  CHECK(read(context, shifted) == Ids{2, 3, 4, -1, 6, 7, 8, -1});
  ops::shift_tokens(context, tokens, starts, 1, -1, shifted);
  CHECK(read(context, shifted) == Ids{2, -1, 4, -1, 6, 7, 8, -1});
}

TEST_CASE("random numbers are a function of key and index, whatever range is asked for") {
  check_same_bits(kAnyThreads, [](ExecutionContext& context) {
    Tensor whole = context.empty(DType::f32, {10001}), part = context.empty(DType::f32, {3000});
    ops::random_normal(context, 42, 0, 0.5, whole);
    ops::random_normal(context, 42, 5001, 0.5, part);
    CHECK(values_of(part) == values_of(whole.slice(0, 5001, 3000)));
    // The same bits on every device.
    Values expected(static_cast<std::size_t>(whole.elements()));
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = 0.5f * random_normal(42, i);
    CHECK(values_of(whole) == expected);
    return expected;
  });
}

TEST_CASE("a strided copy moves the view and nothing else") {
  ExecutionContext context(1, test::device());
  Values values(2 * 3 * 4);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  const Tensor from = make_tensor(context, DType::f32, {2, 3, 4}, values);
  Tensor to = context.zeros(DType::f32, {2, 5, 4});
  Tensor place = to.slice(1, 2, 2);
  ops::copy(context, from.slice(1, 1, 2), place);
  Values expected(2 * 5 * 4, 0.0);
  for (std::size_t b = 0; b < 2; ++b)
    for (std::size_t i = 0; i < 8; ++i) expected[b * 20 + 8 + i] = values[b * 12 + 4 + i];
  CHECK(values_of(to) == expected);
}

TEST_CASE("copies of every size of element and any strides are exact") {
  ExecutionContext context(1, test::device());
  const Shape whole{3, 4, 5, 24};
  for (const std::int64_t first : {0, 1, 2, 8})
    for (const std::int64_t count : {16, 15, 8, 1}) {
      CAPTURE(first);
      CAPTURE(count);
      const auto check = [&]<class T>(T) {
        std::vector<T> values(3 * 4 * 5 * 24);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i % 251);
        const Tensor all = ops::tensor_from_host<T>(context, values, whole);
        const Tensor from = all.slice(3, first, count).slice(2, 1, 3).slice(1, 1, 2);
        Tensor dense = context.empty(dtype_of<T>(), from.shape());
        ops::copy(context, from, dense);
        CHECK(numbers_of<T>(dense) == numbers_of<T>(from));
        Tensor back = context.zeros(dtype_of<T>(), whole);
        Tensor place = back.slice(3, first, count).slice(2, 1, 3).slice(1, 1, 2);
        ops::copy(context, dense, place);
        CHECK(numbers_of<T>(place) == numbers_of<T>(from));
        double kept = 0, copied = 0;
        for (const T value : numbers_of<T>(back)) kept += static_cast<double>(value);
        for (const T value : numbers_of<T>(from)) copied += static_cast<double>(value);
        CHECK(kept == copied);
      };
      check(std::uint8_t{});
      check(float{});
      check(std::int64_t{});
    }
}

TEST_CASE("fills and sums of every type that they are for") {
  ExecutionContext context(2, test::device());
  Tensor floats = context.empty(DType::f32, {1000}), sums = context.zeros(DType::f64, {2});
  ops::fill(context, 2.5, floats);
  CHECK(values_of(floats) == Values(1000, 2.5));
  Tensor odd = floats.slice(0, 1, 998);  // not aligned to 16 bytes
  ops::fill(context, 0.5, odd);
  CHECK(values_of(odd) == Values(998, 0.5));
  CHECK(values_of(floats.slice(0, 999, 1)) == Values{2.5});
  Tensor whole = context.empty(DType::i64, {3});
  ops::fill(context, -7, whole);
  CHECK(ops::copy_to_host<std::int64_t>(context, whole) == std::vector<std::int64_t>(3, -7));
  const Tensor more = ops::tensor_from_host<double>(context, Values{1.5, 2.0}, {2});
  ops::accumulate(context, more, sums);
  ops::accumulate(context, more, sums);
  CHECK(ops::copy_to_host<double>(context, sums) == Values{3.0, 4.0});
}

TEST_CASE("a low-rank update is added to its weight once") {
  ExecutionContext context(2, test::device());
  Tensor w = make_tensor(context, DType::f32, {2, 3}, {1, 2, 3, 4, 5, 6});
  Tensor up = make_tensor(context, DType::f32, {2, 1}, {1, -2});
  const Tensor down = make_tensor(context, DType::f32, {1, 3}, {1, 0, 2});
  ops::merge_low_rank(context, up, down, 0.5f, w);
  CHECK(values_of(w) == Values{1.5, 2, 4, 3, 5, 4});
  CHECK(values_of(up) == Values{0, 0});
  ops::merge_low_rank(context, up, down, 0.5f, w);
  CHECK(values_of(w) == Values{1.5, 2, 4, 3, 5, 4});
}

}  // namespace sortie::trainer
