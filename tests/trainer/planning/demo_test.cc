// Compares the planned memory and messages of DeMo (decoupled momentum) with measured ones.
#include <doctest/doctest.h>

#include <atomic>
#include <mutex>

#include "tests/trainer/planning/planned_job.h"
#include "trainer/parallel/thread_ranks.h"

namespace sortie::trainer::test {
namespace {

config::JobConfig planned_demo_job(const char* optimizer) {
  config::JobConfig job = planned_job();
  job.optimizer.name = optimizer;
  return job;
}

double all_sent(const RankPlan& plan) {
  double bytes = 0.0;
  for (const auto& [to, count] : plan.sent) bytes += count;
  return bytes;
}

TEST_CASE("DeMo keeps 4 bytes a parameter, and its plan is what members take and send") {
  const config::JobConfig job = planned_demo_job("demo");
  const RankPlan plan = planned(job, 4, DType::f32, /*rank=*/1),
                 adamw = planned(planned_demo_job("adamw"), 4, DType::f32, /*rank=*/1);
  CHECK(plan.memory.optimizer * 2 == adamw.memory.optimizer);
  std::mutex mutex;
  std::vector<std::pair<int, MemoryUse>> measured;
  std::atomic<std::size_t> bytes = 0;  // of all ranks, in the steps
  std::atomic<bool> stepping = false;
  run_thread_ranks(4,
                   [&](Communicator& world) {
                     TinyTraining training(job, world);
                     world.barrier();
                     stepping = true;
                     training.losses(2);
                     world.barrier();
                     stepping = false;
                     const std::lock_guard lock(mutex);
                     measured.emplace_back(world.rank(),
                                           tensor_memory(training.trainer->store(),
                                                         training.trainer->context().allocator()));
                   },
                   {.on_send = [&](int, int, std::size_t count) {
                     if (stepping) bytes += count;
                   }});
  for (const auto& [rank, use] : measured) {
    CAPTURE(rank);
    CHECK(plan.memory.weights == use.weights);
    CHECK(plan.memory.gradients == use.gradients);
    CHECK(plan.memory.optimizer == use.optimizer);
    CHECK(static_cast<double>(plan.memory.total() - plan.memory.process) ==
          doctest::Approx(static_cast<double>(use.total())).epsilon(0.03));
  }
  CHECK(measured.size() == 4);
  // Steps also exchange some sums of a few bytes.
  CHECK(static_cast<double>(bytes) == doctest::Approx(2 * 4 * all_sent(plan)).epsilon(0.02));
}

TEST_CASE("on a GPU: the plan of a member of DeMo is what its GPU's allocator then has" *
          doctest::skip(no_gpu_is_tested())) {
  config::JobConfig job = planned_demo_job("demo");
  job.model.vocab_size = 503;
  job.model.num_layers = 2;
  job.model.sequence_length = 16;
  job.optimizer.top_k = 4096;  // large messages
  constexpr int kMembers = 2;
  const auto plan = plan_rank(job, {.micro_batch_size = job.topology.micro_batch_size,
                                    .world_size = kMembers,
                                    .rank = 1,
                                    .dtype = DType::f32,
                                    .gpu = true});
  REQUIRE(plan.has_value());
  std::mutex mutex;
  std::vector<MemoryUse> measured;
  run_thread_ranks(kMembers, [&](Communicator& world) {
    TinyTraining training(job, world);
    training.losses(2);
    const std::lock_guard lock(mutex);
    measured.push_back(
        tensor_memory(training.trainer->store(), training.trainer->context().allocator()));
  });
  REQUIRE(measured.size() == kMembers);
  const MemoryUse& memory = plan->memory;
  const auto tensors = [](const MemoryUse& all) { return all.total() - all.process - all.device; };
  for (const MemoryUse& use : measured) {
    CHECK(memory.weights == use.weights);
    CHECK(memory.optimizer == use.optimizer);
    CHECK(static_cast<double>(tensors(memory)) ==
          doctest::Approx(static_cast<double>(use.total())).epsilon(0.01));
  }
  // Messages are a part of it that the limit above would show.
  job.optimizer.top_k = 1;
  const auto narrow = plan_rank(job, {.micro_batch_size = job.topology.micro_batch_size,
                                      .world_size = kMembers,
                                      .rank = 1,
                                      .dtype = DType::f32,
                                      .gpu = true});
  REQUIRE(narrow.has_value());
  CHECK(tensors(memory) - tensors(narrow->memory) > tensors(memory) / 30);
}

TEST_CASE("DeMo sends all others 82 bytes of a block of 4096 gradients") {
  for (const int ranks : {2, 4, 8}) {
    CAPTURE(ranks);
    const RankPlan plan = planned(planned_demo_job("demo"), ranks, DType::f32, /*rank=*/1);
    const double each = all_sent(plan) / (ranks - 1) / static_cast<double>(plan.parameters.total);
    // The 5003 rows of the tables have blocks of 63 and 64 rows. Blocks of vectors send half of
    // their values.
    CHECK(each == doctest::Approx(82.0 / 4096).epsilon(0.05));
  }
}

}  // namespace
}  // namespace sortie::trainer::test
