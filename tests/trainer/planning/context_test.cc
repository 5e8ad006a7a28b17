// Compares what ranks that share sequences send and allocate, as planned, with formulas and
// measurements.
#include <doctest/doctest.h>

#include <mutex>

#include "tests/support/bytes_to.h"
#include "tests/support/tiny_training.h"
#include "trainer/parallel/thread_ranks.h"
#include "trainer/planning/rank_plan.h"

namespace sortie::trainer::test {
namespace {

config::JobConfig shared_sequences_job(std::int64_t tokens, int ranks) {
  config::JobConfig job = tiny_job();
  job.model.hidden_size = 64;
  job.model.sequence_length = tokens;
  job.topology.micro_batch_size = 1;
  job.topology.global_batch_size = 1;
  job.topology.context_parallel_size = ranks;
  return job;
}

RankPlan plan_of_sharer(const config::JobConfig& job, int rank, DType dtype) {
  auto plan = plan_rank(job, {.micro_batch_size = job.topology.micro_batch_size,
                              .world_size = job.topology.context_parallel_size,
                              .rank = rank,
                              .dtype = dtype});
  REQUIRE_MESSAGE(plan, (plan ? "" : plan.error().message));
  return *std::move(plan);
}

/// Returns the bytes that all ranks send in a step of one micro-batch.
double bytes_sent_around(const config::JobConfig& job, DType dtype) {
  double bytes = 0.0;
  for (int rank = 0; rank < job.topology.context_parallel_size; ++rank)
    bytes += bytes_to(plan_of_sharer(job, rank, dtype).sent, "context");
  return bytes;
}

TEST_CASE("keys, values and their gradients go as often as the formula says") {
  for (const int ranks : {2, 4})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(ranks);
      config::JobConfig job = shared_sequences_job(64, ranks);
      // 2 layers, 2 key-value heads of 16: elements of a chunk's keys and values.
      const double numbers = 64.0 / (2 * ranks) * 2 * (16 + 16);
      const double chunks = 2 * 1.5 * ranks * (ranks - 1);
      const auto width = static_cast<double>(dtype_bytes(dtype));
      CHECK(bytes_sent_around(job, dtype) ==
            doctest::Approx(chunks * numbers * (2 * width + 4)).epsilon(0.03));
      job.topology.activation_checkpointing_type = "every_layer";
      CHECK(bytes_sent_around(job, dtype) ==
            doctest::Approx(chunks * numbers * (3 * width + 4)).epsilon(0.03));
    }
}

TEST_CASE("a window keeps chunks from ranks that see none of them") {
  config::JobConfig job = shared_sequences_job(64, 4);
  const double all = bytes_sent_around(job, DType::f32);
  job.model.architecture = "mistral";
  job.model.attention_layers = {"local"};
  job.model.attention_window = 9;  // sees the chunk before, of 8 tokens
  // Of 8 chunks, one has the next one on the same rank, and one has no next one.
  CHECK(bytes_sent_around(job, DType::f32) == doctest::Approx(all * 6 / 18));
  job.model.attention_window = 1;
  CHECK(bytes_sent_around(job, DType::f32) == 0.0);
}

TEST_CASE("activations of shared sequences take as many times less memory as ranks share them") {
  // In addition to activations, this memory has the table of the embedding's gradient and
  // workspaces of kernels.
  const auto activations = [](std::int64_t tokens, int ranks) {
    return static_cast<double>(
        plan_of_sharer(shared_sequences_job(tokens, ranks), 0, DType::f32).memory.activations);
  };
  const double whole = activations(32768, 1), shared = activations(32768, 4);
  CHECK(shared < 0.4 * whole);
  // The memory depends on the tokens of a rank, not on the length of the sequence.
  CHECK(activations(65536, 8) == doctest::Approx(shared).epsilon(0.05));
  CHECK(plan_of_sharer(shared_sequences_job(64, 4), 1, DType::f32).flop_per_token ==
        plan_of_sharer(shared_sequences_job(64, 1), 0, DType::f32).flop_per_token);
}

TEST_CASE("what ranks that share sequences take is what is planned for them") {
  const config::JobConfig job = shared_sequences_job(2048, 4);
  std::mutex mutex;
  std::vector<std::int64_t> peaks(4);
  run_thread_ranks(4, [&](Communicator& world) {
    TinyTraining training(job, world);
    for (int step = 0; step < 2; ++step) {
      const auto report = training.trainer->step();
      SORTIE_CHECK(report.has_value(), "{}", report ? "" : report.error().message);
    }
    const MemoryUse use =
        tensor_memory(training.trainer->store(), training.trainer->context().allocator());
    const std::lock_guard lock(mutex);
    peaks[static_cast<std::size_t>(world.rank())] = use.activations;
  });
  for (int rank = 0; rank < 4; ++rank) {
    CAPTURE(rank);
    CHECK(static_cast<double>(peaks[static_cast<std::size_t>(rank)]) ==
          doctest::Approx(
              static_cast<double>(plan_of_sharer(job, rank, DType::f32).memory.activations))
              .epsilon(0.03));
  }
}

}  // namespace
}  // namespace sortie::trainer::test
