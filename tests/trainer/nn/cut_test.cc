// Tests of parameters that are cut over ranks: the parts tile the whole, and together have its
// initial values to the bit.
#include "trainer/nn/cut.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "tests/support/flat_values.h"
#include "trainer/nn/parameter_store.h"

using namespace sortie;
using namespace sortie::trainer;

namespace {

CutRule rows_cut(ReduceGroup group = ReduceGroup::dense) {
  return {.axis = 0, .group = group};
}

/// Declares every kind of cut: rows with and without segments and units, columns, vectors, none.
void declare_model(ParameterStore& store) {
  const Init init = Init::normal(0.5);
  store.add({"embedding", {24, 5}, init, Use::matrix, true, {}, rows_cut()});
  store.add({"qkv",
             {8 + 4 + 12, 7},
             init,
             Use::matrix,
             true,
             {{"q", 8, 2}, {"k", 4}, {"v", 12, 3}},
             rows_cut()});
  store.add({"qkv.bias",
             {24},
             init,
             Use::vector,
             false,
             {{"q", 8, 2}, {"k", 4}, {"v", 12, 3}},
             rows_cut()});
  store.add({"out", {6, 16}, init, Use::matrix, true, {}, {.axis = 1}});
  store.add({"norm", {9}, Init::ones(), Use::vector, false, {}, {.partial_gradient = true}});
  store.add({"expert",
             {16, 3},
             init,
             Use::matrix,
             true,
             {{"gate", 8}, {"up", 8}},
             rows_cut(ReduceGroup::expert)});
}

std::vector<float> values_of(ParameterStore& store, const Parameter& parameter) {
  const auto values =
      test::host_view(store, store.master().slice(0, parameter.offset(), parameter.elements()));
  return {values.begin(), values.end()};
}

/// Copies the part's values to where its blocks are in the whole, and counts in `seen` how often
/// each element occurs.
void join(ParameterStore& store, const Parameter& part, std::vector<float>& whole,
          std::vector<int>& seen) {
  const Shape& shape = part.spec().shape;
  const std::int64_t columns = shape.dims() == 2 ? shape[1] : 1;
  const std::vector<float> values = values_of(store, part);
  std::size_t at = 0;
  for (const GlobalBlock& block : part.blocks())
    for (std::int64_t row = block.row; row < block.row + block.rows; ++row)
      for (std::int64_t column = block.column; column < block.column + block.columns; ++column) {
        const auto index = static_cast<std::size_t>(row * columns + column);
        whole[index] = values[at++];
        ++seen[index];
      }
  CHECK(at == values.size());
}

/// Returns CPU time, which other programs do not affect.
double seconds_to_declare_and_find(int experts) {
  const std::clock_t begin = std::clock();
  ParameterStore store;
  std::vector<std::string> names;
  for (int i = 0; i < experts; ++i) {
    names.push_back("layers.0.moe.experts." + std::to_string(i) + ".gate_up.weight");
    store.add({names.back(), {2, 2}, Init::zeros()});
  }
  CHECK(std::ranges::all_of(names, [&](const auto& name) { return store.find(name) != nullptr; }));
  CHECK(store.find("layers.0.moe.experts") == nullptr);
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

}  // namespace

TEST_CASE("parts of a cut model, joined, have the initial values of the whole") {
  ExecutionContext context(2);
  ParameterStore whole;
  declare_model(whole);
  whole.finalize(context, DType::f32, 16, false);
  whole.initialize(11);
  for (const int count : {2, 4}) {
    CAPTURE(count);
    std::map<std::string, std::vector<float>> joined;
    std::map<std::string, std::vector<int>> seen;
    for (int index = 0; index < count; ++index) {
      ParameterStore part;
      declare_model(part);
      REQUIRE(part.cut({.dense = {index, count}, .expert = {(index + 1) % count, count}}));
      part.finalize(context, DType::f32, 16, false);
      part.initialize(11);
      for (const auto& parameter : part.parameters()) {
        const auto elements = static_cast<std::size_t>(parameter->spec().shape.elements());
        auto& values = joined[parameter->name()];
        values.resize(elements);
        seen[parameter->name()].resize(elements);
        join(part, *parameter, values, seen[parameter->name()]);
        CHECK(parameter->weight().shape() == parameter->shape());
        CHECK(parameter->elements() == (parameter->spec().cut.axis
                                            ? static_cast<std::int64_t>(elements) / count
                                            : static_cast<std::int64_t>(elements)));
      }
    }
    for (const auto& parameter : whole.parameters()) {
      CAPTURE(parameter->name());
      CHECK(joined[parameter->name()] == values_of(whole, *parameter));
      const int times = parameter->spec().cut.axis ? 1 : count;
      CHECK(std::ranges::all_of(seen[parameter->name()], [&](int n) { return n == times; }));
    }
  }
}

TEST_CASE("rows are cut segment by segment, columns as a whole") {
  const std::vector<Segment> segments = {{"q", 8, 2}, {"k", 4}, {"v", 4}};
  const auto rows = blocks_of("w", {16, 3}, segments, rows_cut(), {1, 2});
  REQUIRE(rows);
  CHECK(*rows == std::vector<GlobalBlock>{{4, 4, 0, 3}, {10, 2, 0, 3}, {14, 2, 0, 3}});
  CHECK(local_shape({16, 3}, segments, rows_cut(), {1, 2}) == Shape{8, 3});
  const auto columns = blocks_of("w", {16, 6}, segments, {.axis = 1}, {2, 3});
  REQUIRE(columns);
  CHECK(*columns == std::vector<GlobalBlock>{{0, 16, 4, 2}});
  CHECK(local_shape({16, 6}, segments, {.axis = 1}, {2, 3}) == Shape{16, 2});
  const auto whole = blocks_of("w", {16, 6}, segments, {}, {2, 3});
  REQUIRE(whole);
  CHECK(*whole == std::vector<GlobalBlock>{{0, 16, 0, 6}});
}

TEST_CASE("ranks that are more than the heads have them in runs, the first of a run its own") {
  const std::vector<Segment> segments = {{"q", 16, 2}, {"k", 4, 2, /*repeats=*/true}};
  using Blocks = std::vector<GlobalBlock>;
  const auto part = [&](int index) {
    return blocks_of("w", {20, 3}, segments, rows_cut(), {index, 4}).value();
  };
  CHECK(part(0) == Blocks{{0, 4, 0, 3}, {16, 2, 0, 3}});
  CHECK(part(1) == Blocks{{4, 4, 0, 3}, {16, 2, 0, 3, /*repeated=*/true}});
  CHECK(part(2) == Blocks{{8, 4, 0, 3}, {18, 2, 0, 3}});
  CHECK(part(3) == Blocks{{12, 4, 0, 3}, {18, 2, 0, 3, /*repeated=*/true}});
  CHECK(local_shape({20, 3}, segments, rows_cut(), {3, 4}) == Shape{6, 3});
  CHECK(own_elements(part(0)) + own_elements(part(1)) + own_elements(part(2)) +
            own_elements(part(3)) ==
        20 * 3);
  // Two ranks have one head each. Three ranks can not have runs of equal length.
  CHECK(blocks_of("w", {20, 3}, segments, rows_cut(), {1, 2}).value() ==
        Blocks{{8, 8, 0, 3}, {18, 2, 0, 3}});
  CHECK_FALSE(blocks_of("w", {28, 3}, {{"q", 24, 2}, {"k", 4, 2, true}}, rows_cut(), {0, 3}));
}

TEST_CASE("rows that are missing to equal parts are zeros in the last parts' memory") {
  ExecutionContext context(1);
  const CutRule padded{.axis = 0, .pads = true};
  const auto declare = [&](ParameterStore& store) {
    store.add({"table", {8, 2}, Init::normal(1.0), Use::matrix, true, {}, padded});
  };
  ParameterStore whole;
  declare(whole);
  whole.finalize(context, DType::f32, 16, false);
  whole.initialize(3);
  const std::vector<float> expected = values_of(whole, *whole.parameters()[0]);
  std::vector<float> joined;
  for (int index = 0; index < 5; ++index) {
    ParameterStore part;
    declare(part);
    REQUIRE(part.cut({.dense = {index, 5}}));
    part.finalize(context, DType::f32, 16, false);
    part.initialize(3);
    const Parameter& table = *part.parameters()[0];
    CHECK(table.shape() == Shape{2, 2});
    CHECK(own_elements(table.blocks()) == (index < 4 ? 4 : 0));
    const std::vector<float> values = values_of(part, table);
    joined.insert(joined.end(), values.begin(), values.end());
  }
  CHECK(std::vector<float>(joined.begin(), joined.begin() + 16) == expected);
  CHECK(std::vector<float>(joined.begin() + 16, joined.end()) == std::vector<float>(4, 0.0f));
}

TEST_CASE("a cut through a head, or into unequal parts, is refused by name") {
  const std::vector<Segment> segments = {{"q", 8, 4}, {"k", 8}};
  const auto heads = blocks_of("layers.0.qkv", {16, 3}, segments, rows_cut(), {0, 4});
  REQUIRE_FALSE(heads);
  CHECK(heads.error().code == ErrorCode::config);
  CHECK(heads.error().message ==
        "layers.0.qkv: the 8 rows of segment q in units of 4 can not be cut into 4 equal parts; "
        "choose a size of the group that divides them");
  const auto columns = blocks_of("out", {2, 10}, {}, {.axis = 1}, {0, 4});
  REQUIRE_FALSE(columns);
  CHECK(columns.error().message.starts_with("out: its 10 columns can not be cut into 4"));
  ParameterStore store;
  store.add({"odd", {5, 2}, Init::zeros(), Use::matrix, true, {}, rows_cut()});
  CHECK_FALSE(store.cut({.dense = {0, 2}}));
}

TEST_CASE("a copy of another rank's parameter starts from the same values") {
  ExecutionContext context(1);
  ParameterStore first, last;
  first.add({"embedding", {8, 4}, Init::normal(1.0)});
  last.add({"other", {3, 3}, Init::normal(1.0)});
  last.add({"head", {8, 4}, Init::normal(1.0), Use::matrix, true, {}, {}, "embedding"});
  for (ParameterStore* store : {&first, &last}) {
    store->finalize(context, DType::f32, 16, false);
    store->initialize(3);
  }
  CHECK(values_of(first, *first.find("embedding")) == values_of(last, *last.find("head")));
}

TEST_CASE("declaring and finding parameters takes a time that does not grow with their number") {
  // Ten times as many parameters: linear cost is ten times as much, quadratic a hundred times.
  seconds_to_declare_and_find(3000);
  double few = 1e9, many = 1e9;
  for (int round = 0; round < 3; ++round) {
    few = std::min(few, seconds_to_declare_and_find(3000));
    many = std::min(many, seconds_to_declare_and_find(30000));
  }
  CAPTURE(few);
  CAPTURE(many);
  CHECK(many < 35 * few);
}
