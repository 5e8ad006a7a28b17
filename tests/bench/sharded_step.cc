// bench_sharded_step [RANKS] [STEPS] [bf16|f32] [ROUNDS]: a step of replicas as threads of this
// process whose optimizer is sharded, beside one that every replica has whole: seconds, their
// ratio, bytes of state. Rounds are interleaved. All ranks share this machine's cores and memory:
// what is saved is the update's memory traffic, what it costs are messages that are copies.
#include <fmt/core.h>
#include <omp.h>

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/base/elapsed.h"
#include "tests/bench/gpt124m.h"
#include "tests/bench/median.h"
#include "tests/bench/random_source.h"
#include "trainer/loop/trainer.h"
#include "trainer/parallel/thread_ranks.h"
#include "trainer/planning/memory_use.h"

namespace {

using namespace sortie;
using namespace sortie::trainer;
using Clock = std::chrono::steady_clock;

struct Measured {
  std::vector<double> seconds;
  std::int64_t state_bytes = 0;
};

/// Steps of one round, as rank 0 sees them.
Measured measure(const char* sharding, int ranks, int steps, DType dtype) {
  bench::GptShape shape;
  shape.layers = 6;
  shape.hidden = 512;
  shape.heads = 8;
  shape.ffn = 2048;
  shape.vocab = 16384;
  shape.batch = 1;
  config::JobConfig job = bench::gpt_job(shape);
  job.topology.parameter_sharding = sharding;
  job.optimizer.allreduce_bucket_size = 2'000'000;
  Measured measured;
  run_thread_ranks(ranks, [&](Communicator& world) {
    RankContext rank;
    rank.rank = world.rank();
    rank.world_size = world.size();
    rank.threads = 1;
    const config::BatchPlan batch{ranks, shape.batch, 1, shape.batch * ranks};
    bench::RandomSource source(shape.vocab);
    auto events = EventSink::open("");
    SORTIE_CHECK(events.has_value());
    const CpuFacts cpu = cpu_facts();
    Trainer trainer(job, batch, rank, world, *events, source, {}, cpu, dtype, "bench");
    const auto started = trainer.start();
    SORTIE_CHECK(started.has_value(), "{}", started ? "" : started.error().message);
    for (int step = 0; step < steps + 2; ++step) {
      const auto begin = Clock::now();
      const auto report = trainer.step();
      SORTIE_CHECK(report.has_value(), "{}", report ? "" : report.error().message);
      if (world.rank() == 0 && step >= 2) measured.seconds.push_back(seconds_since(begin));
    }
    if (world.rank() != 0) return;
    const MemoryUse use = tensor_memory(trainer.store(), trainer.context().allocator());
    measured.state_bytes = use.weights + use.gradients + use.optimizer;
  });
  return measured;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const int steps = argc > 2 ? std::atoi(argv[2]) : 10;
  const bool wide = argc > 3 && std::string_view(argv[3]) == "f32";
  const int rounds = argc > 4 ? std::atoi(argv[4]) : 3;
  const DType dtype = wide || !cpu_facts().multiplies_bf16 ? DType::f32 : DType::bf16;
  if (ranks < 1 || steps < 1 || rounds < 1) return 2;
  std::vector<double> whole, sharded;
  std::int64_t whole_bytes = 0, sharded_bytes = 0;
  for (int round = 0; round < rounds; ++round) {
    const Measured none = measure("none", ranks, steps, dtype);
    const Measured cut = measure("optimizer", ranks, steps, dtype);
    whole.insert(whole.end(), none.seconds.begin(), none.seconds.end());
    sharded.insert(sharded.end(), cut.seconds.begin(), cut.seconds.end());
    whole_bytes = none.state_bytes;
    sharded_bytes = cut.state_bytes;
  }
  const double before = bench::median(whole), after = bench::median(sharded);
  fmt::print("{} ranks, {}, medians of {} steps\n", ranks, dtype_name(dtype), whole.size());
  fmt::print("parameter_sharding = none       {:8.3f} s   {:6} MB of state a rank\n", before,
             whole_bytes / 1'000'000);
  fmt::print("parameter_sharding = optimizer  {:8.3f} s   {:6} MB   ratio {:.3f}\n", after,
             sharded_bytes / 1'000'000, after / before);
  return 0;
}
