#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "trainer/nn/parameter_store.h"
#include "trainer/random/random.h"

using namespace sortie::trainer;

TEST_CASE(
    "the flat layout is the reverse of the declaration, on cache lines, padded to the alignment") {
  ExecutionContext context(1);
  ParameterStore store;
  Parameter& first = store.add({"first", {3, 5}, Init::normal(0.02), Use::matrix, true, {}});
  Parameter& second = store.add({"second", {7}, Init::ones(), Use::vector, false, {}});
  store.finalize(context, DType::bf16, 5 * 16, true);
  CHECK(second.offset() == 0);
  CHECK(first.offset() == 16);
  CHECK(store.flat_elements() == 80);
  CHECK(store.parameter_elements() == 22);
  first.set_padding(5);  // a row that no token needs
  CHECK(store.parameter_elements() == 17);
  CHECK(first.weight().dtype() == DType::bf16);
  CHECK(second.weight().dtype() == DType::f32);
}

TEST_CASE("initial values depend on seed, name and index, not on the layout") {
  ExecutionContext context(1);
  ParameterStore one, two;
  one.add({"w", {40, 50}, Init::normal(0.5), Use::matrix, true, {}});
  two.add({"before", {9, 9}, Init::normal(0.5), Use::matrix, true, {}});
  two.add({"w", {40, 50}, Init::normal(0.5), Use::matrix, true, {}});
  for (ParameterStore* store : {&one, &two}) {
    store->finalize(context, DType::f32, 16, false);
    store->initialize(7);
  }
  const float* a = one.find("w")->weight().data<float>();
  const float* b = two.find("w")->weight().data<float>();
  double sum = 0, squares = 0;
  for (int i = 0; i < 2000; ++i) {
    REQUIRE(a[i] == b[i]);
    sum += a[i];
    squares += static_cast<double>(a[i]) * a[i];
  }
  CHECK(std::abs(sum / 2000) < 0.05);
  CHECK(std::sqrt(squares / 2000) == doctest::Approx(0.5).epsilon(0.06));
  two.initialize(8);
  CHECK(two.find("w")->weight().data<float>()[0] != a[0]);
}

TEST_CASE("uniform numbers never reach 0 or 1") {
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const double value = random_uniform(3, i);
    REQUIRE(value > 0.0);
    REQUIRE(value < 1.0);
  }
}

TEST_CASE("gradients of an earlier step are replaced by the first product, or zeroed") {
  ExecutionContext context(1);
  ParameterStore store;
  const auto add = [&store](const char* name, bool product) -> Parameter& {
    return store.add(
        {.name = name, .shape = {3, 5}, .init = Init::zeros(), .product_gradient = product});
  };
  Parameter& product = add("product", true);
  Parameter& table = add("table", false);
  Parameter& other = add("other", true);
  Parameter& unused = add("unused", true);
  Parameter& idle = add("idle", true);
  store.finalize(context, DType::f32, 16, true);
  const auto value_of = [](Parameter& parameter) {  // through grad(), which zeroes an old value
    return parameter.grad().data<float>()[0];
  };
  float* const all = store.gradients().data<float>();
  const auto raw = [all](const Parameter& parameter) { return all[parameter.offset()]; };
  const auto fill_all = [&](float value) { std::fill_n(all, store.gradients().elements(), value); };
  std::vector<ops::WriteMode> modes;
  const auto multiply = [&](Parameter& parameter) {
    parameter.add_product([&](Tensor&, ops::WriteMode mode) { modes.push_back(mode); });
  };

  // Without keep_old_gradients(), all gradients are zeroed and added to.
  fill_all(7.0f);
  store.zero_gradients();
  CHECK(raw(product) == 0.0f);
  multiply(product);
  CHECK(modes == std::vector{ops::WriteMode::add});

  store.keep_old_gradients();
  for (int step = 0; step < 2; ++step) {
    CAPTURE(step);
    fill_all(7.0f);
    store.zero_gradients();
    CHECK(raw(table) == 0.0f);
    CHECK(raw(product) == 7.0f);
    modes.clear();
    multiply(product);
    multiply(product);
    CHECK(modes == std::vector{ops::WriteMode::replace, ops::WriteMode::add});
    CHECK(value_of(product) == 7.0f);
    CHECK(value_of(other) == 0.0f);  // no product has written it
    multiply(other);
    CHECK(modes.back() == ops::WriteMode::add);
    unused.use_recorded();  // a pass that gives it no gradient
    CHECK(raw(unused) == 7.0f);
    unused.use_done();
    CHECK(raw(unused) == 0.0f);
    CHECK(raw(idle) == 7.0f);
    store.zero_unwritten_gradients();
    CHECK(raw(idle) == 0.0f);
    CHECK(raw(product) == 7.0f);
  }
  // After graphs have zeroed and written gradients, the host is notified.
  store.gradients_zeroed();
  store.gradients_written();
  modes.clear();
  multiply(product);
  CHECK(modes == std::vector{ops::WriteMode::add});
}
