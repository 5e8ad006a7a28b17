// Tests that the progress of ranks tells a GPU that hangs from those that wait for it.
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "tests/support/emulated.h"
#include "tests/support/tiny_training.h"
#include "tests/trainer/parallel/socket_ranks.h"

namespace sortie::trainer::test {
namespace {

using training::Section;

using SeenRanks = std::array<ProgressMarks::Seen, 2>;

/// Trains on two GPUs. In the sixth step that of rank 1 hangs at a kernel of its forward pass.
/// Returns the progress of both ranks once `expected` holds, else after 30 s, and lets the GPU
/// continue.
SeenRanks hang_in_forward(const config::JobConfig& job,
                          const std::function<bool(const SeenRanks& seen)>& expected) {
  constexpr int kStepsBefore = 5;  // graphs are captured in the third
  constexpr std::uint64_t kKernels = 8;
  std::array<RankContext, 2> ranks;
  std::atomic<bool> hangs = false;
  const auto look = [&] { return SeenRanks{ranks[0].marks->look(), ranks[1].marks->look()}; };
  SeenRanks seen;
  std::jthread watcher([&] {
    while (!hangs) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    do {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      seen = look();
    } while (!expected(seen) && std::chrono::steady_clock::now() < limit);
    // It stays so.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    seen = look();
    set_emulated("sortie_emulated_hang", 1, kNeverHangs);
  });
  const RankErrors errors = run_gpu_ranks(2, [&](Communicator& world, ExecutionContext&) {
    RankContext& rank = ranks[static_cast<std::size_t>(world.rank())];
    rank.compute = compute_device();
    rank.compute.device.index = world.rank();
    rank.marks->count_collectives(world.begun(), long_wait_between_devices(world));
    TinyTraining training(job, world, DType::f32, 1, nullptr, rank);
    (void)training.losses(kStepsBefore);
    training.trainer->context().synchronize();
    world.barrier();
    if (world.rank() == 1) {
      set_emulated("sortie_emulated_hang", 1, kKernels);
      hangs = true;
    }
    (void)training.losses(1);
    training.trainer->context().synchronize();
    world.barrier();
    rank.marks->count_collectives(nullptr);
  });
  hangs = true;  // if a rank has failed
  watcher.join();
  CHECK(all_empty(errors));
  CHECK(ranks[0].marks->look().step == ranks[1].marks->look().step);
  return seen;
}

config::JobConfig hanging_job() {
  config::JobConfig job = tiny_job();
  job.model.sequence_length = 16;
  return job;
}

}  // namespace

TEST_CASE("on a GPU: one that hangs stands in its section, and the others in the collective" *
          doctest::skip(!gpu_is_emulated())) {
  for (const char* graphs : {"off", "auto"}) {
    CAPTURE(std::string(graphs));
    config::JobConfig job = hanging_job();
    job.trainer.cuda_graphs = graphs;
    const SeenRanks seen = hang_in_forward(job, [](const SeenRanks& now) {
      return now[0].section == Section::reduce && now[1].section == Section::forward &&
             now[0].sequence > now[1].sequence;
    });
    CHECK(seen[0].step == 6);
    CHECK(seen[1].step == 6);
    CHECK(seen[0].section == Section::reduce);
    CHECK(seen[1].section == Section::forward);
    CHECK(seen[0].sequence > seen[1].sequence);
  }
}

TEST_CASE("on a GPU: of ranks that share layers, the one that hangs has reached fewer collectives" *
          doctest::skip(!gpu_is_emulated())) {
  config::JobConfig job = hanging_job();
  job.topology.tensor_parallel_size = 2;
  // Both stand in their forward pass, but rank 0 waits there.
  const SeenRanks seen = hang_in_forward(job, [](const SeenRanks& now) {
    return now[0].section == Section::reduce && now[0].sequence > now[1].sequence;
  });
  CHECK(seen[0].step == 6);
  CHECK(seen[1].step == 6);
  CHECK(seen[0].section == Section::reduce);
  CHECK(seen[1].section == Section::forward);
  CHECK(seen[0].sequence > seen[1].sequence);
}

}  // namespace sortie::trainer::test
