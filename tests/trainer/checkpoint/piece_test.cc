// Tests of Piece: the elements that two pieces share, and whether pieces tile a tensor. Compared
// with element-by-element arithmetic.
#include "trainer/checkpoint/piece.h"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <vector>

namespace sortie::trainer {
namespace {

/// Global row-major numbers of the elements that a piece holds, in its own order.
std::vector<std::int64_t> elements_of(const Piece& piece, const Dims& shape) {
  std::vector<std::int64_t> elements;
  Dims at(shape.size(), 0);
  const std::int64_t box = *num_elements(piece.extent);
  for (std::int64_t local = 0; local < box; ++local) {
    std::int64_t rest = local;
    for (std::size_t d = shape.size(); d-- > 0;) {
      at[d] = piece.offset[d] + rest % piece.extent[d];
      rest /= piece.extent[d];
    }
    std::int64_t global = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) global = global * shape[d] + at[d];
    if (local >= piece.begin && local < piece.end) elements.push_back(global);
  }
  return elements;
}

Piece random_piece(const Dims& shape, std::mt19937& random) {
  auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
  };
  Dims offset, extent;
  for (const std::int64_t size : shape) {
    const bool full = random() % 2 == 0;
    offset.push_back(full ? 0 : below(size));
    extent.push_back(full ? size : 1 + below(size - offset.back()));
  }
  Piece piece = Piece::box(offset, extent);
  if (random() % 2 == 0) {
    piece.begin = below(piece.end);
    piece.end = piece.begin + 1 + below(piece.end - piece.begin);
  }
  return piece;
}

}  // namespace

TEST_CASE("shared runs are the shared elements, for random pieces of random shapes") {
  std::mt19937 random(1);
  const std::vector<Dims> shapes = {{7}, {5, 6}, {3, 4, 5}, {2, 3, 2, 4}, {1, 1}, {6, 1, 3}};
  for (int round = 0; round < 3000; ++round) {
    const Dims& shape = shapes[static_cast<std::size_t>(round) % shapes.size()];
    const Piece a = random_piece(shape, random);
    const Piece b = random_piece(shape, random);
    CAPTURE(a.to_string());
    CAPTURE(b.to_string());
    const auto in_a = elements_of(a, shape);
    const auto in_b = elements_of(b, shape);
    std::map<std::int64_t, std::int64_t> place_in_b;
    for (std::size_t i = 0; i < in_b.size(); ++i)
      place_in_b[in_b[i]] = static_cast<std::int64_t>(i);
    std::size_t expected = 0;
    for (const std::int64_t element : in_a) expected += place_in_b.contains(element);
    std::size_t seen = 0;
    for_each_shared_run(a, b, [&](std::int64_t at_a, std::int64_t at_b, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i)
        REQUIRE(in_a.at(static_cast<std::size_t>(at_a + i)) ==
                in_b.at(static_cast<std::size_t>(at_b + i)));
      seen += static_cast<std::size_t>(count);
    });
    CHECK(seen == expected);
  }
}

TEST_CASE("equal and column-cut boxes give long runs, not single elements") {
  int runs = 0;
  auto count = [&](auto, auto, auto) { ++runs; };
  const Dims shape = {100, 64, 8};
  for_each_shared_run(Piece::whole(shape), Piece::interval(shape, 1000, 40000), count);
  CHECK(runs == 1);
  runs = 0;
  for_each_shared_run(Piece::whole(shape), Piece::box({10, 0, 0}, {20, 64, 8}), count);
  CHECK(runs == 1);
  runs = 0;
  for_each_shared_run(Piece::whole(shape), Piece::box({10, 32, 0}, {20, 32, 8}), count);
  CHECK(runs == 20);
}

TEST_CASE("a scalar is one element") {
  int runs = 0;
  for_each_shared_run(Piece::whole({}), Piece::whole({}), [&](auto a, auto b, auto n) {
    CHECK(a == 0);
    CHECK(b == 0);
    CHECK(n == 1);
    ++runs;
  });
  CHECK(runs == 1);
  CHECK(tiling_problem({Piece::whole({})}, {}).empty());
  CHECK(Piece::whole({}).local_shape().empty());
}

TEST_CASE("a piece less than its box has one dimension") {
  CHECK(Piece::whole({2, 3}).local_shape() == Dims{2, 3});
  CHECK(Piece::box({0, 1}, {2, 2}).local_shape() == Dims{2, 2});
  CHECK(Piece::interval({2, 3}, 1, 5).local_shape() == Dims{4});
  CHECK(Piece::interval({2, 3}, 0, 6).local_shape() == Dims{2, 3});
}

TEST_CASE("pieces outside of the tensor are found") {
  const Dims shape = {4, 6};
  CHECK(piece_problem(Piece::whole(shape), shape).empty());
  CHECK_FALSE(piece_problem(Piece::whole({4}), shape).empty());
  CHECK_FALSE(piece_problem(Piece{{0, 3}, {4, 4}, 0, 16}, shape).empty());
  CHECK_FALSE(piece_problem(Piece{{-1, 0}, {4, 6}, 0, 24}, shape).empty());
  CHECK_FALSE(piece_problem(Piece{{0, 0}, {4, -6}, 0, 0}, shape).empty());
  CHECK_FALSE(piece_problem(Piece{{0, INT64_MAX}, {4, 6}, 0, 24}, shape).empty());
  CHECK_FALSE(piece_problem(Piece{{0, 1}, {4, INT64_MAX}, 0, 24}, shape).empty());
  CHECK_FALSE(piece_problem(Piece::interval(shape, 0, 25), shape).empty());
  CHECK_FALSE(piece_problem(Piece::interval(shape, 5, 4), shape).empty());
  CHECK_FALSE(piece_problem(Piece::interval(shape, -1, 4), shape).empty());
}

TEST_CASE("a tiling has no hole and no overlap") {
  const Dims shape = {4, 6};
  const Piece left = Piece::box({0, 0}, {4, 3});
  const Piece right = Piece::box({0, 3}, {4, 3});
  Piece right_begin = right, right_end = right;
  right_begin.end = right_end.begin = 7;  // inside a row
  CHECK(tiling_problem({left, right}, shape).empty());
  CHECK(tiling_problem({right_end, left, right_begin}, shape).empty());
  CHECK(tiling_problem({}, shape) == "pieces hold 0 of 24 elements");
  CHECK(tiling_problem({left, right_begin}, shape) == "pieces hold 19 of 24 elements");
  CHECK(tiling_problem({left, right, right}, shape).find("more than") != std::string::npos);
  // The right number of elements, but some are held twice and others not at all.
  CHECK(tiling_problem({left, left}, shape).find("overlap") != std::string::npos);
  CHECK(tiling_problem({left, Piece::box({0, 2}, {4, 3})}, shape).find("overlap") !=
        std::string::npos);
  Piece late = right_begin;
  late.begin = 1;
  late.end = 6;
  CHECK(tiling_problem({left, right_begin, late}, shape).find("overlap") != std::string::npos);
  CHECK(tiling_problem({}, {0, 3}).empty());
  CHECK(tiling_problem({Piece::whole({0, 3})}, {0, 3}).empty());
}

}  // namespace sortie::trainer
