// Tests of shares of gradients and weights between replicas: which rank gets which sums, and that
// no weight is used before it has arrived.
#include "trainer/parallel/weight_gatherer.h"

#include <atomic>

#include "tests/trainer/parallel/on_ranks.h"
#include "trainer/ops/copy.h"
#include "trainer/parallel/gradient_reducer.h"
#include "trainer/tensor/device_memory.h"

using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

/// A store of matrices and vectors, one of them larger than a bucket.
struct SharedStore {
  ParameterStore store;
  std::vector<Parameter*> parameters;
  SharedStore(ExecutionContext& context, Communicator& ranks, DType compute) {
    for (int i = 0; i < 7; ++i)
      parameters.push_back(&store.add({"p" + std::to_string(i),
                                       {i == 2 ? 200 : 10 + i, 3},
                                       Init::zeros(),
                                       i % 3 == 1 ? Use::f32_matrix : Use::matrix,
                                       true}));
    store.shard({ranks.rank(), ranks.size(), 64});
    store.finalize(context, compute, ranks.size() * kLineElements, true);
  }
};

void write_values(ExecutionContext& context, Tensor to, float value) {
  std::vector<float> values(static_cast<std::size_t>(to.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = value + static_cast<float>(i);
  ops::copy_from_host<float>(context, values, to);
}

/// Returns what the next forward pass must find in an element that `rank` updates.
float weight_of(int rank, std::int64_t element) {
  return static_cast<float>(rank + 1) * 32.0f + static_cast<float>(element % 16);
}

/// Runs two steps of sums and gathers on one rank.
void take_steps(Communicator& ranks, ExecutionContext& context, DType compute, Wrongs& wrongs) {
  SharedStore with(context, ranks, compute);
  ParameterStore& store = with.store;
  GradientReducer reducer(store, ranks, 1);
  WeightGatherer gatherer(store, ranks);
  const float rank = static_cast<float>(ranks.rank()), size = static_cast<float>(ranks.size());
  for (int step = 0; step < 2; ++step) {
    for (Parameter* parameter : with.parameters) parameter->use_recorded();
    reducer.begin();
    for (int i = 6; i >= 0; --i) {
      Parameter& parameter = *with.parameters[static_cast<std::size_t>(i)];
      write_values(context, parameter.grad().view({parameter.elements()}),
                   static_cast<float>(100 * step + i) + rank);
      parameter.use_done();
      reducer.poll();
    }
    reducer.finish();
    const std::vector<float> sums = ops::copy_to_host<float>(context, store.gradients());
    for (int i = 0; i < 7; ++i) {
      const Parameter& parameter = *with.parameters[static_cast<std::size_t>(i)];
      for (const OwnRun& run : parameter.own_runs())
        for (std::int64_t at = run.flat.begin; at < run.flat.end; ++at) {
          const auto e = static_cast<float>(at - parameter.offset());
          const float expected =
              size * (static_cast<float>(100 * step + i) + e) + size * (size - 1.0f) / 2.0f;
          wrongs.check(sums[static_cast<std::size_t>(at)] == expected,
                       fmt::format("sum of p{} at {}", i, e));
        }
    }
    // The rank's own share of every bucket gets values that identify the rank.
    gatherer.finish();
    for (std::size_t bucket = store.buckets().size(); bucket-- > 0;) {
      const FlatRange own = store.own_share(bucket);
      Tensor place = store.values_of(own);
      std::vector<float> values;
      for (std::int64_t at = own.begin; at < own.end; ++at)
        values.push_back(weight_of(ranks.rank() + step, at));
      if (place.dtype() == DType::bf16) {
        std::vector<bf16> narrow(values.begin(), values.end());
        ops::copy_from_host<bf16>(context, narrow, place);
      } else {
        ops::copy_from_host<float>(context, values, place);
      }
      gatherer.start(bucket);
    }
    for (int i = 0; i < 7; ++i) {
      const Parameter& parameter = *with.parameters[static_cast<std::size_t>(i)];
      const Tensor weight = parameter.weight().view({parameter.elements()});
      std::vector<float> found;
      if (weight.dtype() == DType::bf16) {
        for (const bf16 value : ops::copy_to_host<bf16>(context, weight))
          found.push_back(static_cast<float>(value));
      } else {
        found = ops::copy_to_host<float>(context, weight);
      }
      for (std::int64_t e = 0; e < parameter.elements(); ++e) {
        const std::int64_t at = parameter.offset() + e;
        const FlatRange bucket = store.buckets()[buckets_of(store.buckets(), {at, at + 1}).first];
        const auto owner =
            static_cast<int>((at - bucket.begin) / (bucket.elements() / ranks.size()));
        wrongs.check(found[static_cast<std::size_t>(e)] == weight_of(owner + step, at),
                     fmt::format("weight of p{} at {} in step {}", i, e, step));
      }
    }
    store.zero_gradients();
  }
}

}  // namespace

TEST_CASE("a rank gets the sums of its share, and all weights before they are used") {
  for (const DType compute : {DType::f32, DType::bf16})
    for (const ThreadRankOptions& options : deliveries()) {
      Wrongs wrongs;
      run_thread_ranks(
          3,
          [&](Communicator& ranks) {
            ExecutionContext context(1);
            take_steps(ranks, context, compute, wrongs);
          },
          options);
      CHECK(wrongs.all() == "");
    }
}

TEST_CASE("shares are summed and gathered on a device's memory, and by ops that run late") {
  for (const DType compute : {DType::f32, DType::bf16}) {
    Wrongs wrongs;
    run_thread_ranks(2, [&](Communicator& ranks) {
      ExecutionContext context(1, {.kind = DeviceKind::guarded});
      take_steps(ranks, context, compute, wrongs);
      wrongs.check(!host_can_access(context.device()), "closed at the end");
    });
    for (std::uint64_t seed = 1; seed <= 10; ++seed)
      run_thread_ranks(3,
                       [&](Communicator& ranks) {
                         ExecutionContext context(1);
                         context.defer(seed + 1000 * static_cast<std::uint64_t>(ranks.rank()));
                         take_steps(ranks, context, compute, wrongs);
                       },
                       {std::chrono::microseconds(seed % 3 == 0 ? 200 : 0), seed});
    CHECK(wrongs.all() == "");
  }
}

TEST_CASE("who uses a parameter waits for its buckets alone") {
  Wrongs wrongs;
  std::atomic<bool> used = false;
  run_thread_ranks(2, [&](Communicator& ranks) {
    ExecutionContext context(1);
    SharedStore with(context, ranks, DType::f32);
    WeightGatherer gatherer(with.store, ranks);
    const std::size_t last = with.store.buckets().size() - 1;
    gatherer.start(last);
    if (ranks.rank() == 0) {
      gatherer.start(0);
      // The parameter that was declared first is in the last buckets.
      (void)with.parameters[0]->weight();
      wrongs.check(gatherer.open_buckets() == 1, "the other bucket is on its way");
      used = true;
    } else {  // rank 0 can not get this before
      while (!used) gatherer.poll();
      gatherer.start(0);
    }
    with.store.await_values();
    wrongs.check(gatherer.open_buckets() == 0, "all have come");
  });
  CHECK(wrongs.all() == "");
}

TEST_CASE("weights on their way go with a rank whose peer is lost") {
  bool thrown = false;
  try {
    run_thread_ranks(2, [&](Communicator& ranks) {
      if (ranks.rank() == 1) throw std::runtime_error("lost");
      ExecutionContext context(1);
      SharedStore with(context, ranks, DType::f32);
      WeightGatherer gatherer(with.store, ranks);
      gatherer.start_all();  // the end of the scope waits for them in vain
    });
  } catch (const std::runtime_error& error) {
    thrown = std::string_view(error.what()) == "lost";
  }
  CHECK(thrown);
}
