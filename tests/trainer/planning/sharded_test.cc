// A sharded optimizer's memory and messages, as planned, as measured, and by formula.
#include <doctest/doctest.h>

#include <mutex>

#include "tests/support/tiny_training.h"
#include "trainer/parallel/thread_ranks.h"
#include "trainer/planning/rank_plan.h"

namespace sortie::trainer::test {
namespace {

config::JobConfig sharded_job(const char* sharding, std::int64_t bucket = 100'000) {
  config::JobConfig job = tiny_job();
  job.model.vocab_size = 5003;
  job.model.hidden_size = 192;
  job.model.num_layers = 4;
  job.model.num_attention_heads = 8;
  job.model.ffn_hidden_size = 512;
  job.model.sequence_length = 64;
  job.topology.parameter_sharding = sharding;
  job.optimizer.allreduce_bucket_size = bucket;
  return job;
}

RankPlan planned(const config::JobConfig& job, std::int64_t ranks, DType dtype, int rank = 0) {
  auto plan = plan_rank(job, {.micro_batch_size = job.topology.micro_batch_size,
                              .world_size = ranks,
                              .rank = rank,
                              .dtype = dtype});
  REQUIRE_MESSAGE(plan, (plan ? "" : plan.error().message));
  return *std::move(plan);
}

/// Of weights, gradients and moments, a parameter.
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
  const DType narrow = cpu_facts().multiplies_bf16 ? DType::bf16 : DType::f32;
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

}  // namespace
}  // namespace sortie::trainer::test
