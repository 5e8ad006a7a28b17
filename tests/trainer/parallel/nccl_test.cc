// Tests of collectives between emulated GPUs. Every rank is a thread with a separate GPU.
#include <cstring>
#include <mutex>
#include <numeric>

#include "tests/support/scoped_variable.h"
#include "tests/trainer/parallel/on_ranks.h"
#include "tests/trainer/parallel/socket_ranks.h"
#include "trainer/ops/elementwise.h"
#include "trainer/parallel/device_communicator.h"
#include "trainer/parallel/stage_exchange.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

Tensor on_gpu_of(ExecutionContext& context, int rank, std::int64_t elements) {
  std::vector<float> values(static_cast<std::size_t>(elements));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = sample<float>(rank, static_cast<std::int64_t>(i));
  return ops::tensor_from_host<float>(context, values, {elements});
}

bool near(float value, double expected, double scale) {
  return std::abs(value - expected) <= 1e-5 * scale;
}

/// Returns the sum over ranks of element i, and the sum of the magnitudes.
std::pair<double, double> sum_over(int ranks, std::int64_t i) {
  double sum = 0, scale = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    sum += sample<float>(rank, i);
    scale += std::abs(sample<float>(rank, i));
  }
  return {sum, scale};
}

/// Each rank sends two messages to the rank above it and one to the rank below it. The last rank is
/// not part of this ring and has no messages. Needs at least 3 ranks.
void exchange_in_a_ring(Communicator& world, ExecutionContext& context, Wrongs& wrongs) {
  const int rank = world.rank(), ring = world.size() - 1;
  std::vector<DeviceMessage> sends, receives;
  const auto values_of = [&](int of, double which, std::int64_t elements) {
    Tensor values = context.empty(DType::f32, {elements});
    ops::fill(context, 10.0 * of + which, values);
    return values;
  };
  if (rank < ring) {
    const int above = (rank + 1) % ring, below = (rank + ring - 1) % ring;
    sends = {{values_of(rank, 1, 50), above},
             {values_of(rank, 2, 20), above},
             {values_of(rank, 3, 30), below}};
    receives = {{context.empty(DType::f32, {50}), below},
                {context.empty(DType::f32, {20}), below},
                {context.empty(DType::f32, {30}), above}};
  }
  exchange_between_devices(world, DType::f32, sends, receives, context.record())->wait_on(context);
  sends.clear();
  for (std::size_t i = 0; i < receives.size(); ++i)
    for (const float value : ops::copy_to_host<float>(context, receives[i].values))
      wrongs.check(value == static_cast<float>(10 * receives[i].rank + static_cast<int>(i) + 1),
                   "a message");
}

}  // namespace

TEST_CASE("nccl: sums, gathers and exchanges of GPUs start when their values are there") {
  Wrongs wrongs;
  const RankErrors errors = run_gpu_ranks(3, [&](Communicator& world, ExecutionContext& context) {
    const int rank = world.rank(), size = world.size();
    constexpr std::int64_t kElements = 600;
    wrongs.check(world.library().starts_with("NCCL "), "library: " + world.library());

    // A stream writes the values late. The op that follows reads the result without a wait of the
    // host.
    Tensor values = on_gpu_of(context, rank, kElements);
    const Tensor zeros = context.zeros(DType::f32, {kElements});
    Tensor copy = context.empty(DType::f32, {kElements});
    auto sum = world.all_reduce_async(values, ReduceOp::sum, context.record());
    sum->wait_on(context);
    ops::add(context, values, zeros, copy);
    const auto sums = ops::copy_to_host<float>(context, copy);
    for (std::int64_t i = 0; i < kElements; ++i) {
      const auto [expected, scale] = sum_over(size, i);
      wrongs.check(near(sums[static_cast<std::size_t>(i)], expected, scale), "all-reduce");
    }

    const Tensor whole = on_gpu_of(context, rank, kElements);
    const Tensor part = context.empty(DType::f32, {kElements / size});
    world.reduce_scatter_async(whole, part, ReduceOp::sum, context.record())->wait();
    const auto mine = ops::copy_to_host<float>(context, part);
    for (std::int64_t i = 0; i < part.elements(); ++i) {
      const auto [expected, scale] = sum_over(size, rank * part.elements() + i);
      wrongs.check(near(mine[static_cast<std::size_t>(i)], expected, scale), "reduce-scatter");
    }

    Tensor gathered = context.empty(DType::f32, {kElements * size});
    const Tensor place = gathered.slice(0, kElements * rank, kElements);
    ops::copy_from_host<float>(context, ops::copy_to_host<float>(context, whole),
                               const_cast<Tensor&>(place));
    auto gather = world.all_gather_async(place, gathered, context.record());
    while (!gather->poll()) {
    }
    const auto all = ops::copy_to_host<float>(context, gathered);
    for (int other = 0; other < size; ++other)
      wrongs.check(all[static_cast<std::size_t>(other * kElements + 5)] == sample<float>(other, 5),
                   "all-gather");

    // Rank r sends r + 1 elements to rank 0, r + 2 to rank 1 ..., none to itself.
    std::vector<std::int64_t> sends, receives;
    for (int other = 0; other < size; ++other) {
      sends.push_back(other == rank ? 0 : rank + other + 1);
      receives.push_back(other == rank ? 0 : rank + other + 1);
    }
    const auto sent = std::accumulate(sends.begin(), sends.end(), std::int64_t{0});
    const Tensor out = on_gpu_of(context, rank, sent);
    const Tensor in = context.empty(DType::f32, {sent});
    world.all_to_all_async(out, sends, in, receives, context.record())->wait();
    const auto got = ops::copy_to_host<float>(context, in);
    std::size_t at = 0;
    for (int other = 0; other < size; ++other) {
      std::int64_t offset = 0;  // in what `other` sends to this rank
      for (int before = 0; before < rank; ++before)
        offset += other == before ? 0 : other + before + 1;
      for (std::int64_t i = 0; i < receives[static_cast<std::size_t>(other)]; ++i)
        wrongs.check(got[at++] == sample<float>(other, offset + i), "all-to-all");
    }

    Tensor told = on_gpu_of(context, rank, 9);
    context.synchronize();
    world.broadcast(told, 2);
    wrongs.check(ops::copy_to_host<float>(context, told)[8] == sample<float>(2, 8), "broadcast");

    // Collectives of host memory work as well.
    double numbers[] = {1.0 * rank};
    world.all_reduce_sum(numbers);
    wrongs.check(numbers[0] == 3.0, "host values");
    world.barrier();
  });
  CHECK(all_empty(errors));
  CHECK(wrongs.all() == "");
}

TEST_CASE("nccl: groups of a group have collectives of their own, in flight together") {
  Wrongs wrongs;
  const RankErrors errors = run_gpu_ranks(4, [&](Communicator& world, ExecutionContext& context) {
    const int rank = world.rank();
    auto pair = world.split(rank / 2, rank, "pair");
    auto alone = world.split(rank, 0, "alone");
    auto some = world.split(rank == 3 ? -1 : 0, -rank, "some");
    wrongs.check((some == nullptr) == (rank == 3), "split with a negative color");
    wrongs.check(sends_between_devices(*pair), "a pair by way of the host");
    Tensor of_world = on_gpu_of(context, rank, 50), of_pair = on_gpu_of(context, rank, 50);
    Tensor of_one = on_gpu_of(context, rank, 50);
    auto first = world.all_reduce_async(of_world, ReduceOp::sum, context.record());
    auto second = pair->all_reduce_async(of_pair, ReduceOp::max, context.record());
    auto third = alone->all_reduce_async(of_one, ReduceOp::sum, context.record());
    const Tensor copy = context.empty(DType::f32, {50});
    alone->all_gather_async(of_one, copy, context.record())->wait();
    if (rank % 2 == 0) first->wait();
    second->wait();
    third->wait();
    first->wait();
    const auto sums = ops::copy_to_host<float>(context, of_world);
    const auto larger = ops::copy_to_host<float>(context, of_pair);
    const int low = rank / 2 * 2;
    wrongs.check(near(sums[7], sum_over(4, 7).first, sum_over(4, 7).second), "sum of the world");
    wrongs.check(larger[7] == std::max(sample<float>(low, 7), sample<float>(low + 1, 7)),
                 "maximum of a pair");
    wrongs.check(ops::copy_to_host<float>(context, copy)[7] == sample<float>(rank, 7), "alone");
    if (some) {
      Tensor members = on_gpu_of(context, rank, 6);
      some->all_reduce_async(members, ReduceOp::sum, context.record())->wait_on(context);
      wrongs.check(near(ops::copy_to_host<float>(context, members)[3], sum_over(3, 3).first,
                        sum_over(3, 3).second),
                   "sum of some");
    }
  });
  CHECK(all_empty(errors));
  CHECK(wrongs.all() == "");
}

TEST_CASE("nccl: a sum has the same bits on all ranks and from run to run") {
  std::vector<std::vector<float>> runs;
  std::mutex mutex;
  for (int run = 0; run < 2; ++run) {
    const RankErrors errors = run_gpu_ranks(3, [&](Communicator& world, ExecutionContext& context) {
      Tensor values = on_gpu_of(context, world.rank(), 1000);
      world.all_reduce_async(values, ReduceOp::sum, context.record())->wait_on(context);
      auto sums = ops::copy_to_host<float>(context, values);
      const std::lock_guard lock(mutex);
      runs.push_back(std::move(sums));
    });
    CHECK(all_empty(errors));
  }
  REQUIRE(runs.size() == 6);
  for (const auto& one : runs) CHECK(one == runs[0]);
}

TEST_CASE("nccl: variables that decide the order of sums are named") {
  const auto settings = [](int ranks) {
    std::vector<std::string> of_ranks(static_cast<std::size_t>(ranks));
    CHECK(all_empty(run_gpu_ranks(ranks, [&](Communicator& world, ExecutionContext&) {
      of_ranks[static_cast<std::size_t>(world.rank())] = world.settings();
    })));
    return of_ranks;
  };
  using Texts = std::vector<std::string>;
  const ScopedVariable nvls("NCCL_NVLS_ENABLE", std::nullopt);
  {
    const ScopedVariable algorithm("NCCL_ALGO", std::nullopt);
    CHECK(settings(2) == Texts{"NCCL_NVLS_ENABLE=0", "NCCL_NVLS_ENABLE=0"});
    CHECK(settings(1) == Texts{""});  // has no sums
  }
  const ScopedVariable algorithm("NCCL_ALGO", "Tree"), protocol("NCCL_PROTO", "Simple");
  ::unsetenv("NCCL_NVLS_ENABLE");
  CHECK(settings(2) ==
        Texts{"NCCL_ALGO=Tree NCCL_PROTO=Simple", "NCCL_ALGO=Tree NCCL_PROTO=Simple"});
}

TEST_CASE("nccl: what breaks between GPUs ends the wait and says where") {
  const auto sum_of_all = [](Communicator& world, ExecutionContext& context) {
    for (int i = 0; i < 3; ++i) {
      Tensor values = on_gpu_of(context, world.rank(), 100);
      world.all_reduce_async(values, ReduceOp::sum, context.record())->wait();
    }
  };
  SUBCASE("an error of the library's own") {
    const sortie::test::ScopedVariable fault("SORTIE_EMULATED_NCCL_FAULT", "error:1:1");
    const RankErrors errors = run_gpu_ranks(3, sum_of_all);
    INFO(errors[1]);
    CHECK(errors[1].find("all-reduce 7 of group world (3 ranks): NCCL ") == 0);
    CHECK(errors[1].find("remote process exited") != std::string::npos);
    for (const std::string& error : errors) CHECK(!error.empty());
  }
  SUBCASE("a collective that goes nowhere") {
    const sortie::test::ScopedVariable fault("SORTIE_EMULATED_NCCL_FAULT", "hang:2:2");
    const sortie::test::ScopedVariable limit("SORTIE_COMM_TIMEOUT", "5");
    const RankErrors errors = run_gpu_ranks(3, sum_of_all);
    // The rank that gives up first ends the wait of the others.
    CHECK(std::ranges::any_of(errors, [](const std::string& error) {
      return error.find(
                 "all-reduce 8 of group world (3 ranks): no collective between GPUs "
                 "made progress for 5 s") == 0;
    }));
    for (const std::string& error : errors) CHECK(!error.empty());
  }
  SUBCASE("ranks that ask for different things") {
    const RankErrors errors = run_gpu_ranks(2, [](Communicator& world, ExecutionContext& context) {
      Tensor values = on_gpu_of(context, world.rank(), 100 + world.rank());
      world.all_reduce_async(values, ReduceOp::sum, context.record())->wait();
    });
    for (const std::string& error : errors) {
      INFO(error);
      CHECK(error.find("all-reduce 6 of group world") == 0);
      // The rank that arrived first is named first, so the order may vary.
      CHECK(error.find("rank 0") != std::string::npos);
      CHECK(error.find("all-reduce of 100 ") != std::string::npos);
      CHECK(error.find("rank 1") != std::string::npos);
      CHECK(error.find("all-reduce of 101 ") != std::string::npos);
    }
  }
  SUBCASE("ranks that ask for different things, in the debug mode") {
    const sortie::test::ScopedVariable debug("SORTIE_COMM_DEBUG", "1");
    const RankErrors errors = run_gpu_ranks(2, [](Communicator& world, ExecutionContext& context) {
      Tensor values = on_gpu_of(context, world.rank(), 100 + world.rank());
      world.all_reduce_async(values, ReduceOp::sum, context.record())->wait();
    });
    for (const std::string& error : errors) {
      INFO(error);
      CHECK(error.find("all-reduce 6 of 101 f32") != std::string::npos);
    }
  }
  SUBCASE("a rank that goes") {
    const RankErrors errors = run_gpu_ranks(2, [&](Communicator& world, ExecutionContext& context) {
      if (world.rank() == 1) throw std::runtime_error("this rank has had enough");
      sum_of_all(world, context);
    });
    INFO(errors[0]);
    CHECK(errors[0].find("rank 1") != std::string::npos);
    CHECK(errors[0].find("closed its connection") != std::string::npos);
  }
}

TEST_CASE("nccl: messages of several ranks are one collective") {
  Wrongs wrongs;
  for (const char* debug : {"0", "1"}) {
    const sortie::test::ScopedVariable mode("SORTIE_COMM_DEBUG", debug);
    const RankErrors errors = run_gpu_ranks(4, [&](Communicator& world, ExecutionContext& context) {
      for (int round = 0; round < 3; ++round) exchange_in_a_ring(world, context, wrongs);
      world.barrier();
    });
    CHECK(all_empty(errors));
  }
  CHECK(wrongs.all() == "");
}

TEST_CASE("nccl: an exchange whose ranks do not expect what they are sent is named") {
  const auto unequal = [](Communicator& world, ExecutionContext& context) {
    const DeviceMessage sent{context.empty(DType::f32, {6}), 1 - world.rank()};
    const DeviceMessage got{context.empty(DType::f32, {world.rank() == 0 ? 6 : 7}),
                            1 - world.rank()};
    exchange_between_devices(world, DType::f32, {{sent}}, {{got}}, context.record())->wait();
  };
  SUBCASE("in the debug mode") {
    const sortie::test::ScopedVariable debug("SORTIE_COMM_DEBUG", "1");
    const RankErrors errors = run_gpu_ranks(2, unequal);
    INFO(errors[1]);
    CHECK(errors[1].find("group world: exchange: rank 0 sends 6 elements to rank 1, which expects "
                         "7") != std::string::npos);
  }
  SUBCASE("by the library") {
    const RankErrors errors = run_gpu_ranks(2, unequal);
    INFO(errors[1]);
    CHECK(errors[1].find("exchange ") == 0);
    CHECK(errors[1].find(" of group world (2 ranks)") != std::string::npos);
  }
}

TEST_CASE("nccl: stages send each other tensors from GPU to GPU") {
  Wrongs wrongs;
  const RankErrors errors = run_gpu_ranks(3, [&](Communicator& world, ExecutionContext& context) {
    StageExchange exchange(context, world);
    wrongs.check(exchange.lines().direct(), "by way of the host");
    const PipelineShape shape{.stages = world.size(), .interleave = 2, .micro_batches = 6};
    constexpr std::int64_t kRows = 40, kWidth = 3;
    Tensor ones = context.empty(DType::f32, {kRows, kWidth});
    ops::fill(context, 1.0, ones);
    for (int round = 0; round < 2; ++round) {
      StageExchange::Form form;
      form.width = kWidth;
      form.rows = [](std::int64_t) { return kRows; };
      form.forward_sums = 4;
      exchange.begin(shape, StageExchange::Pass::training, std::move(form));
      std::map<std::int64_t, Tensor> last;  // output of the last run, by micro-batch
      for (const PipelineAction& action : training_schedule(shape, world.rank())) {
        const int at = shape.global_run(world.rank(), action.run);
        const bool forward = action.kind == PipelineAction::Kind::forward;
        const bool first = forward ? at == 0 : at + 1 == shape.runs();
        const auto micro_batch = static_cast<double>(action.micro_batch);
        StageParcel in, out;
        if (!first) {
          in = exchange.take(action);
        } else {
          in.hidden =
              forward ? context.empty(DType::f32, {kRows, kWidth}) : last.at(action.micro_batch);
          if (forward) ops::fill(context, 100.0 * micro_batch, in.hidden);
        }
        // Each run adds one, in the backward pass, too.
        out.hidden = context.empty(DType::f32, {kRows, kWidth});
        ops::add(context, in.hidden, ones, out.hidden);
        if (forward) {
          out.sums = in.sums.defined() ? in.sums : context.zeros(DType::f64, {4});
          wrongs.check(first || ops::copy_to_host<double>(context, in.sums)[3] == 0.0, "sums");
        }
        if (forward && at + 1 == shape.runs()) last[action.micro_batch] = out.hidden;
        if (!forward && at == 0) {
          const double expected = 100.0 * micro_batch + 2.0 * shape.runs();
          for (const float value : ops::copy_to_host<float>(context, out.hidden))
            wrongs.check(value == static_cast<float>(expected), "a gradient");
        }
        exchange.send(action, std::move(out));
      }
      exchange.finish();
      world.barrier();
    }
  });
  CHECK(all_empty(errors));
  CHECK(wrongs.all() == "");
}
