// Tests of RepeatedWork: repeated work has the same bits op by op and as a graph, and work that is
// not the same is detected.
#include "trainer/tensor/repeated_work.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/support/test_device.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/scale.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

constexpr std::int64_t kRowElements = 100;
using Done = RepeatedWork::Done;

/// Adds up what each round leaves in x.
struct Rounds {
  ExecutionContext context{1, device()};
  Tensor x = context.empty(DType::f32, {kRowElements});
  Tensor sum = context.zeros(DType::f32, {kRowElements});

  void set_x(float value) {
    const std::vector<float> values(kRowElements, value);
    ops::copy_from_host<float>(context, values, x);
  }
  /// sum += 2 x, with temporary memory that is freed again.
  void add_twice() {
    Tensor twice = context.empty(DType::f32, {kRowElements});
    ops::add(context, x, x, twice);
    ops::add(context, sum, twice, sum);
  }
  float first_sum() { return ops::copy_to_host<float>(context, sum)[0]; }
};

}  // namespace

TEST_CASE("on a GPU: repeated work becomes a graph, which reads what the device has" *
          doctest::skip(no_gpu_is_tested())) {
  Rounds rounds;
  RepeatedWork work("a round");
  std::vector<Tensor> others;
  float expected = 0.0f;
  for (int i = 1; i <= 8; ++i) {
    rounds.set_x(static_cast<float>(i));
    expected += 2.0f * static_cast<float>(i);
    const Done done = work.run(rounds.context, [&] { rounds.add_twice(); });
    CHECK((done == Done::as_graph) == (i > 3));
    // Memory that others allocate and keep is not that of the graph.
    others.push_back(rounds.context.empty(DType::f32, {kRowElements}));
    ops::fill(rounds.context, 1000.0, others.back());
    CHECK(rounds.first_sum() == expected);
  }
  CHECK_FALSE(work.take_failure());
  for (const Tensor& other : others)
    CHECK(ops::copy_to_host<float>(rounds.context, other)[0] == 1000.0f);
  work.forget();
  CHECK(work.run(rounds.context, [&] { rounds.add_twice(); }) == Done::op_by_op);
}

TEST_CASE("on a GPU: a value that a graph was told, and does not read, is stale" *
          doctest::skip(no_gpu_is_tested())) {
  Rounds rounds;
  RepeatedWork work("a round");
  for (int i = 1; i <= 5; ++i)
    (void)work.run(rounds.context, [&] { ops::fill(rounds.context, i, rounds.sum); });
  CHECK(rounds.first_sum() == 3.0f);  // the value of the round that was captured
}

TEST_CASE("on a GPU: what a capture does not allow is named, and the work is done op by op" *
          doctest::skip(no_gpu_is_tested())) {
  Rounds rounds;
  RepeatedWork work("a round");
  float expected = 0.0f;
  int undone = 0;
  std::string why;
  for (int i = 1; i <= 6; ++i) {
    rounds.set_x(static_cast<float>(i));
    expected += 2.0f * static_cast<float>(i);
    CHECK(work.run(
              rounds.context,
              [&] {
                rounds.add_twice();
                (void)rounds.first_sum();  // waits for the device
              },
              [&] { ++undone; }) == Done::op_by_op);
    if (const auto failure = work.take_failure()) why += *failure;
    CHECK(rounds.first_sum() == expected);
  }
  CHECK(undone == 1);
  CHECK(why.find("a round is not a CUDA graph: GPU: ") == 0);
  CHECK(why.find("cudaErrorStreamCapture") != std::string::npos);
  // The streams can capture other work as before.
  RepeatedWork other("another");
  for (int i = 0; i < 4; ++i) (void)other.run(rounds.context, [&] { rounds.add_twice(); });
  CHECK(other.is_graph());
}

TEST_CASE("on a GPU: a graph whose memory may be another one's is captured anew" *
          doctest::skip(no_gpu_is_tested())) {
  Rounds rounds;
  RepeatedWork work("a round"), other("another");
  const auto round = [&] {
    rounds.set_x(1.0f);
    return work.run(rounds.context, [&] { rounds.add_twice(); });
  };
  for (int i = 0; i < 4; ++i) (void)round();
  CHECK(work.is_graph());
  Tensor kept;  // may use memory that the graph uses
  (void)other.run(rounds.context, [&] {
    kept = rounds.context.empty(DType::f32, {kRowElements});
    ops::fill(rounds.context, 7.0, kept);
  });
  CHECK(round() == Done::op_by_op);
  for (int i = 0; i < 4; ++i) (void)round();
  CHECK(work.is_graph());
  CHECK(rounds.first_sum() == 18.0f);
  CHECK(ops::copy_to_host<float>(rounds.context, kept)[0] == 7.0f);
}

TEST_CASE("memory of repeated work has the same addresses, whatever others take") {
  ExecutionContext context(1, device());
  std::vector<void*> first;
  std::vector<Tensor> others;
  for (int i = 0; i < 4; ++i) {
    std::vector<void*> addresses;
    const std::uint64_t version = context.allocator().repeated_version();
    {
      const Allocator::RepeatedMemory memory(context.allocator());
      std::vector<Tensor> some;
      for (const std::int64_t size : {100, 100, 5000})
        some.push_back(context.empty(DType::f32, {size}));
      for (const Tensor& tensor : some) addresses.push_back(tensor.raw());
      while (!some.empty()) some.pop_back();
    }
    CHECK(context.allocator().repeated_version() == version);
    if (i == 0) first = addresses;
    CHECK(addresses == first);
    others.push_back(context.empty(DType::f32, {100}));
    CHECK(std::ranges::find(first, others.back().raw()) == first.end());
  }
  const std::uint64_t version = context.allocator().repeated_version();
  Tensor kept;
  {
    const Allocator::RepeatedMemory memory(context.allocator());
    kept = context.empty(DType::f32, {100});
  }
  CHECK(context.allocator().repeated_version() == version + 1);
  const void* const place = kept.raw();
  kept = {};
  CHECK(context.allocator().repeated_version() == version + 2);
  CHECK(std::ranges::find(first, place) != first.end());
}
