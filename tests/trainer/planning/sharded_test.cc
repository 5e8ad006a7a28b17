// Compares the planned memory and messages of sharded optimizers with measured ones and with
// formulas.
#include <doctest/doctest.h>

#include <atomic>
#include <mutex>

#include "tests/support/bf16.h"
#include "tests/trainer/planning/planned_job.h"
#include "trainer/parallel/thread_ranks.h"

namespace sortie::trainer::test {
namespace {

config::JobConfig sharded_job(const char* sharding, std::int64_t bucket = 100'000) {
  config::JobConfig job = planned_job();
  job.topology.parameter_sharding = sharding;
  job.optimizer.allreduce_bucket_size = bucket;
  return job;
}

/// Returns the bytes of weights, gradients and moments per parameter.
double bytes_each(const RankPlan& plan) {
  const MemoryUse& use = plan.memory;
  return static_cast<double>(use.weights + use.gradients + use.optimizer) /
         static_cast<double>(plan.parameters.total);
}

TEST_CASE("the state takes 6 + 12 / d bytes a parameter in bf16, and 8 + 8 / d in f32") {
  CHECK(bytes_each(planned(sharded_job("none"), 4, DType::bf16)) ==
        doctest::Approx(18.0).epsilon(0.03));
  for (const int ranks : {2, 4, 8}) {
    CAPTURE(ranks);
    const RankPlan narrow = planned(sharded_job("optimizer"), ranks, DType::bf16);
    CHECK(bytes_each(narrow) == doctest::Approx(6.0 + 12.0 / ranks).epsilon(0.03));
    const RankPlan wide = planned(sharded_job("optimizer"), ranks, DType::f32);
    CHECK(bytes_each(wide) == doctest::Approx(8.0 + 8.0 / ranks).epsilon(0.03));
  }
}

TEST_CASE("what ranks with a sharded optimizer take is what is planned for them") {
  const DType narrow = narrow_type();
  for (const DType dtype : {DType::f32, narrow}) {
    const config::JobConfig job = sharded_job("optimizer");
    std::mutex mutex;
    std::vector<std::pair<int, MemoryUse>> measured;
    run_thread_ranks(4, [&](Communicator& world) {
      TinyTraining training(job, world, dtype);
      training.losses(2);
      training.trainer->store().await_values();
      const std::lock_guard lock(mutex);
      measured.emplace_back(world.rank(), tensor_memory(training.trainer->store(),
                                                        training.trainer->context().allocator()));
    });
    for (const auto& [rank, use] : measured) {
      CAPTURE(rank);
      const MemoryUse plan = planned(job, 4, dtype, rank).memory;
      CHECK(plan.weights == use.weights);
      CHECK(plan.gradients == use.gradients);
      CHECK(plan.optimizer == use.optimizer);
      CHECK(static_cast<double>(plan.total() - plan.process) ==
            doctest::Approx(static_cast<double>(use.total())).epsilon(0.03));
    }
    CHECK(measured.size() == 4);
  }
}

TEST_CASE("a step sends (d-1)/d of gradients and of weights, without shares twice of gradients") {
  for (const int ranks : {2, 4, 8})
    for (const DType dtype : {DType::bf16, DType::f32}) {
      CAPTURE(ranks);
      const double part = (ranks - 1.0) / ranks;
      const auto sent = [&](const char* sharding) {
        const RankPlan plan = planned(sharded_job(sharding), ranks, dtype);
        double bytes = 0.0;
        for (const auto& [group, count] : plan.sent) bytes += count;
        return bytes / static_cast<double>(plan.parameters.total);
      };
      CHECK(sent("none") == doctest::Approx(2.0 * part * 4.0).epsilon(0.03));
      const double gathered = dtype == DType::bf16 ? 2.0 : 4.0;
      CHECK(sent("optimizer") == doctest::Approx(part * (4.0 + gathered)).epsilon(0.03));
    }
}

config::JobConfig full_job() {
  config::JobConfig job = sharded_job("full");
  job.model.weight_tying = false;
  return job;
}

/// Parameters of the units of full_job(): a table (the embedding or the head), and one of four
/// layers. Ignores the final norm.
struct UnitSizes {
  double table = 0, layer = 0;
  explicit UnitSizes(const RankPlan& plan) {
    table = 5003.0 * 192.0;
    layer = (static_cast<double>(plan.parameters.total) - 2.0 * table) / 4.0;
  }
};

TEST_CASE("full sharding takes 18 / d bytes a parameter, 16 / d in f32, and two gathered units") {
  for (const int ranks : {2, 4, 8})
    for (const DType dtype : {DType::bf16, DType::f32}) {
      CAPTURE(ranks);
      const RankPlan plan = planned(full_job(), ranks, dtype);
      const auto all = static_cast<double>(plan.parameters.total);
      // With four layers between two tables, each of the two rooms holds one of the tables, which
      // are the largest units.
      const double rooms = (dtype == DType::bf16 ? 2.0 + 4.0 : 8.0) * 2.0 * UnitSizes(plan).table;
      const double expected = (dtype == DType::bf16 ? 18.0 : 16.0) / ranks * all + rooms;
      CHECK(bytes_each(plan) * all == doctest::Approx(expected).epsilon(0.03));
      CHECK(plan.memory.packed == 0);
    }
}

/// Returns the bytes that a rank sends in a step of `micro` micro-batches on d = `ranks` replicas.
/// Each gather and each sum sends (d - 1) / d of its elements. A micro-batch gathers all units in
/// the forward pass and, in the backward pass, all layers except the last, which is still gathered;
/// it sums all gradients. The first layer is still gathered when the next micro-batch begins.
double full_bytes(const UnitSizes& sizes, int ranks, int micro, DType dtype) {
  const double gathered = micro * (2.0 * sizes.table + 6.0 * sizes.layer) + sizes.layer;
  const double summed = micro * (2.0 * sizes.table + 4.0 * sizes.layer);
  return (ranks - 1.0) / ranks * ((dtype == DType::bf16 ? 2.0 : 4.0) * gathered + 4.0 * summed);
}

TEST_CASE("full sharding sends a step's gathers and sums: the formula, the plan, the messages") {
  const DType narrow = narrow_type();
  for (const int micro : {1, 2, 5})
    for (const DType dtype : {narrow, DType::f32}) {
      config::JobConfig job = full_job();
      job.topology.micro_batch_size = 1;
      job.topology.gradient_accumulation_steps = micro;
      job.topology.global_batch_size = 0;
      CAPTURE(micro);
      const RankPlan plan = planned(job, 4, dtype);
      double sent = 0.0;
      for (const auto& [group, bytes] : plan.sent) sent += bytes;
      const double expected = full_bytes(UnitSizes(plan), 4, micro, dtype);
      CHECK(sent == doctest::Approx(expected).epsilon(0.03));
      if (micro != 2) continue;
      // Counts the second of two steps, because the first weights of a step are gathered at the end
      // of the step before.
      std::atomic<double> messages = 0.0;
      std::atomic<bool> counts = false;
      run_thread_ranks(4,
                       [&](Communicator& world) {
                         TinyTraining training(job, world, dtype);
                         training.losses(1);
                         training.trainer->store().await_values();
                         world.barrier();
                         if (world.rank() == 0) counts = true;
                         world.barrier();
                         training.losses(1);
                         training.trainer->store().await_values();
                         world.barrier();
                         if (world.rank() == 0) counts = false;
                         world.barrier();
                       },
                       {.on_send = [&](int from, int, std::size_t bytes) {
                         if (from == 1 && counts) messages = messages + static_cast<double>(bytes);
                       }});
      CHECK(messages.load() == doctest::Approx(expected).epsilon(0.03));
    }
}

TEST_CASE("memory of a fully sharded step is that of its plan, and does not grow") {
  const DType narrow = narrow_type();
  for (const DType dtype : {DType::f32, narrow}) {
    config::JobConfig job = full_job();
    job.topology.gradient_accumulation_steps = 2;
    job.topology.global_batch_size = 0;
    std::mutex mutex;
    std::vector<std::pair<int, MemoryUse>> measured;
    run_thread_ranks(4, [&](Communicator& world) {
      TinyTraining training(job, world, dtype);
      Allocator& allocator = training.trainer->context().allocator();
      training.losses(2);
      const std::size_t reserved = allocator.bytes_reserved();
      training.losses(3);
      training.trainer->store().await_values();
      const std::lock_guard lock(mutex);
      CHECK(allocator.bytes_reserved() == reserved);
      measured.emplace_back(world.rank(), tensor_memory(training.trainer->store(), allocator));
    });
    for (const auto& [rank, use] : measured) {
      CAPTURE(rank);
      const MemoryUse plan = planned(job, 4, dtype, rank).memory;
      CHECK(plan.weights == use.weights);
      CHECK(plan.gradients == use.gradients);
      CHECK(plan.optimizer == use.optimizer);
      CHECK(static_cast<double>(plan.total() - plan.process) ==
            doctest::Approx(static_cast<double>(use.total())).epsilon(0.03));
    }
    CHECK(measured.size() == 4);
  }
}

}  // namespace
}  // namespace sortie::trainer::test
