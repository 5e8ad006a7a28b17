// Tests of NCCL calls that continue in NCCL's own threads, because its communicators do not block,
// and of how they end.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/support/emulated.h"
#include "tests/support/scoped_variable.h"
#include "tests/trainer/parallel/on_ranks.h"
#include "tests/trainer/parallel/socket_ranks.h"
#include "trainer/ops/elementwise.h"
#include "trainer/parallel/stage_exchange.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;
using sortie::test::ScopedVariable;

namespace {

Tensor ones(ExecutionContext& context) {
  Tensor tensor = context.empty(DType::f32, {64});
  ops::fill(context, 1.0, tensor);
  return tensor;
}

bool starts(const std::string& text, const std::string& with) {
  return text.find(with) == 0;
}

}  // namespace

TEST_CASE("nccl: a collective long after the start has a time limit of its own") {
  const ScopedVariable limit("SORTIE_COMM_TIMEOUT", "4");
  Wrongs wrongs;
  const RankErrors errors = run_gpu_ranks(2, [&](Communicator& world, ExecutionContext& context) {
    auto pair = world.split(0, world.rank(), "pair");
    std::this_thread::sleep_for(std::chrono::milliseconds(4500));
    Tensor values = ones(context);
    pair->all_reduce_async(values, ReduceOp::sum, context.record())->wait();
    world.all_reduce_async(values, ReduceOp::sum, context.record())->wait();
    wrongs.check(ops::copy_to_host<float>(context, values)[9] == 4.0f, "a sum");
  });
  CHECK(all_empty(errors));
  CHECK(wrongs.all() == "");
}

TEST_CASE("nccl: the watch does not ask a communicator that the rank is in a call of") {
  // A call takes as long as many checks of the watch. The emulation ends the process if two threads
  // use a communicator at once.
  const ScopedVariable slow("SORTIE_EMULATED_NCCL_CALL_MS", "4");
  Wrongs wrongs;
  const RankErrors errors = run_gpu_ranks(2, [&](Communicator& world, ExecutionContext& context) {
    auto pair = world.split(0, world.rank(), "pair");
    Tensor values = ones(context);
    for (int i = 0; i < 40; ++i)
      (i % 2 == 0 ? world : *pair)
          .all_reduce_async(values, ReduceOp::max, context.record())
          ->wait_on(context);
    wrongs.check(ops::copy_to_host<float>(context, values)[9] == 1.0f, "a maximum");
  });
  CHECK(all_empty(errors));
  CHECK(wrongs.all() == "");
}

TEST_CASE("nccl: a collective whose ranks never connect ends, and is named") {
  const ScopedVariable fault("SORTIE_EMULATED_NCCL_FAULT", "connect:1:0");
  const ScopedVariable limit("SORTIE_COMM_TIMEOUT", "3");
  const RankErrors errors = run_gpu_ranks(2, [](Communicator& world, ExecutionContext& context) {
    Tensor values = ones(context);
    world.all_reduce_async(values, ReduceOp::sum, context.record())->wait();
  });
  INFO(errors[0]);
  INFO(errors[1]);
  CHECK(std::ranges::any_of(errors, [](const std::string& error) {
    return starts(error, "all-reduce 6 of group world (2 ranks): NCCL 2.28.9 did not begin in 3 s");
  }));
  for (const std::string& error : errors) CHECK(!error.empty());
}

TEST_CASE("nccl: a split that is interrupted leaves NCCL a place to write to") {
  const ScopedVariable fault("SORTIE_EMULATED_NCCL_FAULT", "split:1:1");
  const ScopedVariable limit("SORTIE_COMM_TIMEOUT", "3");
  const RankErrors errors = run_gpu_ranks(2, [](Communicator& world, ExecutionContext& context) {
    auto first = world.split(0, world.rank(), "first");
    auto second = world.split(0, world.rank(), "second");
    Tensor values = ones(context);
    second->all_reduce_async(values, ReduceOp::sum, context.record())->wait();
  });
  INFO(errors[0]);
  INFO(errors[1]);
  // Its own split timed out, or rank 0, whose collective waits for the split, gave up first.
  CHECK(starts(errors[1], "split of group world into second: "));
  CHECK(!errors[0].empty());
}

TEST_CASE("nccl: groups are aborted together, so that none waits for the kernel of another") {
  const ScopedVariable fault("SORTIE_EMULATED_NCCL_FAULT", "hang:1:2");
  const ScopedVariable limit("SORTIE_COMM_TIMEOUT", "3");
  const auto body = [](Communicator& world, ExecutionContext& context, bool throws) {
    auto pair = world.split(0, world.rank(), "pair");
    Tensor values = ones(context);
    world.all_reduce_async(values, ReduceOp::sum, context.record())->wait();
    pair->all_reduce_async(values, ReduceOp::sum, context.record())->wait();
    // The collective of the world hangs, and that of the pair begins only after it.
    world.all_reduce_async(values, ReduceOp::sum, context.record())->wait_on(context);
    auto last = pair->all_reduce_async(values, ReduceOp::sum, context.record());
    if (throws) throw std::runtime_error("this rank has had enough");
    last->wait();
  };
  SUBCASE("by a failed wait") {
    const RankErrors errors = run_gpu_ranks(
        2, [&](Communicator& world, ExecutionContext& context) { body(world, context, false); });
    CHECK(std::ranges::any_of(errors, [](const std::string& error) {
      return error.find("no collective between GPUs made progress for 3 s") != std::string::npos;
    }));
    for (const std::string& error : errors) CHECK(!error.empty());
  }
  SUBCASE("by an exception of the rank's own") {
    const RankErrors errors = run_gpu_ranks(2, [&](Communicator& world, ExecutionContext& context) {
      body(world, context, world.rank() == 0);
    });
    CHECK(errors[0] == "this rank has had enough");
    CHECK(!errors[1].empty());
  }
}

TEST_CASE("nccl: the end of a group with a collective that hangs ends") {
  const ScopedVariable fault("SORTIE_EMULATED_NCCL_FAULT", "hang:1:1");
  const ScopedVariable limit("SORTIE_COMM_TIMEOUT", "3");
  const RankErrors errors = run_gpu_ranks(2, [](Communicator& world, ExecutionContext& context) {
    auto pair = world.split(0, world.rank(), "pair");
    Tensor values = ones(context);
    pair->all_reduce_async(values, ReduceOp::sum, context.record())->wait();
    pair->all_reduce_async(values, ReduceOp::sum, context.record())->wait_on(context);
    pair = nullptr;
    // The next collective reports it.
    world.all_reduce_async(values, ReduceOp::sum, context.record())->wait();
  });
  for (const std::string& error : errors) CHECK(!error.empty());
}

TEST_CASE("nccl: the host does not wait at the end of a step for what its stage has sent") {
  Wrongs wrongs;
  std::atomic<bool> finished = false;
  const RankErrors errors = run_gpu_ranks(2, [&](Communicator& world, ExecutionContext& context) {
    StageExchange exchange(context, world);
    const PipelineShape shape{.stages = 2, .interleave = 1, .micro_batches = 1};
    for (int round = 0; round < 2; ++round) {  // the stages connect in the first round
      StageExchange::Form form;
      form.width = 3;
      form.rows = [](std::int64_t) { return 40; };
      exchange.begin(shape, StageExchange::Pass::forward_only, std::move(form));
      for (const PipelineAction& action : forward_schedule(shape, world.rank())) {
        if (world.rank() == 0) {
          StageParcel out;
          out.hidden = context.empty(DType::f32, {40, 3});
          ops::fill(context, 7.0 + round, out.hidden);
          exchange.send(action, std::move(out));
          continue;
        }
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (round == 1 && !finished && std::chrono::steady_clock::now() < limit)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        wrongs.check(round == 0 || finished, "the sender's host waits for its receiver");
        const StageParcel in = exchange.take(action);
        wrongs.check(
            ops::copy_to_host<float>(context, in.hidden)[99] == static_cast<float>(7 + round),
            "values");
      }
      exchange.finish();
      if (world.rank() == 0 && round == 1) finished = true;
      world.barrier();
    }
  });
  CHECK(all_empty(errors));
  CHECK(wrongs.all() == "");
}

TEST_CASE("nccl: a collective counts as begun once its GPU has reached it") {
  Wrongs wrongs;
  std::atomic<bool> counted = false;
  const RankErrors errors = run_gpu_ranks(2, [&](Communicator& world, ExecutionContext& context) {
    const std::atomic<std::uint64_t>& begun = *world.begun();
    const auto becomes = [&](std::uint64_t wanted) {
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (begun != wanted && std::chrono::steady_clock::now() < limit)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return begun == wanted;
    };
    Tensor values = context.empty(DType::f32, {64});
    context.synchronize();
    world.barrier();
    const std::uint64_t before = begun;
    if (world.rank() == 1) set_emulated("sortie_emulated_hang", 1, 0);
    ops::fill(context, 1.0, values);
    auto sum = world.all_reduce_async(values, ReduceOp::sum, context.record());
    if (world.rank() == 0) {
      wrongs.check(becomes(before + 1), "rank 0's GPU stands in the collective");
      counted = true;
    } else {
      while (!counted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // several looks of the watch
      wrongs.check(begun == before, "a collective that the GPU has not reached is counted");
      set_emulated("sortie_emulated_hang", 1, kNeverHangs);
    }
    sum->wait();
    wrongs.check(becomes(before + 1), "both have begun it");
    const Tensor nothing = context.empty(DType::f32, {0});
    world.all_reduce_async(nothing, ReduceOp::sum, context.record())->wait();
    wrongs.check(begun == before + 2, "one without elements");
  });
  CHECK(all_empty(errors));
  CHECK(wrongs.all() == "");
}
