// bench_memory_checkpoints [THREADS] [ROUNDS] [bf16|f32] [INTERVAL]: the cost of checkpoints in
// memory for a 124M GPT (B4 T256): INTERVAL steps with one and INTERVAL steps without, interleaved.
// One rank copies and hashes the whole state; each of four ranks on four hosts has half of that.
#include <fmt/core.h>
#include <omp.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/base/elapsed.h"
#include "tests/bench/gpt124m.h"
#include "tests/bench/median.h"
#include "tests/bench/random_source.h"
#include "trainer/cli/passive_threads.h"
#include "trainer/loop/trainer.h"
#include "trainer/parallel/communicator.h"

namespace {

using namespace sortie;
using namespace sortie::trainer;
using Clock = std::chrono::steady_clock;

/// Returns the seconds of `steps` steps, with all work that is due after each.
double timed_steps(Trainer& trainer, std::int64_t steps) {
  const auto begin = Clock::now();
  for (std::int64_t i = 0; i < steps; ++i) {
    const auto report = trainer.step();
    SORTIE_CHECK(report.has_value(), "{}", report ? "" : report.error().message);
    const auto after = trainer.after_step(*report);
    SORTIE_CHECK(after.has_value(), "{}", after ? "" : after.error().message);
  }
  return seconds_since(begin);
}

struct Folders {
  std::filesystem::path save, memory;
};

Result<> run(const Folders& folders, int threads, int rounds, DType dtype, std::int64_t interval) {
  const bench::GptShape shape;
  config::JobConfig job = bench::gpt_job(shape);
  job.trainer.train_iterations = 1'000'000;
  job.trainer.save_dir = folders.save;
  job.trainer.memory_checkpoint_interval = interval;
  const CpuFacts cpu = cpu_facts();
  omp_set_num_threads(threads);
  RankContext rank;
  rank.threads = threads;
  rank.run_id = "bench";
  rank.memory_folder = folders.memory;
  const config::BatchPlan batch{1, shape.batch, 1, shape.batch};
  bench::RandomSource source(shape.vocab);
  SORTIE_ASSIGN_OR_RETURN(EventSink events, EventSink::open(""));
  const auto communicator = make_single_communicator();
  Trainer trainer(job, batch, rank, *communicator, events, source, {}, cpu, dtype, "bench");
  SORTIE_TRY(trainer.start());

  // Warm-up: both slots get their pages, and the checkpoint is then due in the middle of a round.
  timed_steps(trainer, 2 * interval + interval / 2);
  std::vector<double> without, with, ratios;
  for (int round = 0; round < rounds; ++round) {
    job.trainer.memory_checkpoint_interval = 0;
    without.push_back(timed_steps(trainer, interval));
    job.trainer.memory_checkpoint_interval = interval;
    with.push_back(timed_steps(trainer, interval));
    ratios.push_back(with.back() / without.back());
    fmt::print("round {}: {:.3f} s without, {:.3f} s with, ratio {:.4f}\n", round + 1,
               without.back(), with.back(), ratios.back());
  }
  std::int64_t bytes = 0;
  for (const auto& parameter : trainer.store().parameters()) bytes += parameter->elements() * 12;
  const auto steps = static_cast<double>(interval);
  fmt::print("\n{}, {}, {} thread{}, {}; {} MB of state every {} steps, medians of {} rounds\n",
             cpu.model, cpu.isa, threads, threads == 1 ? "" : "s", dtype_name(dtype),
             bytes / 1'000'000, interval, rounds);
  fmt::print("step without / with   {:8.4f} s / {:.4f} s   ratio {:.4f}\n",
             bench::median(without) / steps, bench::median(with) / steps, bench::median(ratios));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  trainer::make_threads_wait_passively(argv);
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  const bool f32 = argc > 3 && std::string_view(argv[3]) == "f32";
  const std::int64_t interval = argc > 4 ? std::atoll(argv[4]) : 20;
  ::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (threads < 1 || rounds < 1 || interval < 2) {
    fmt::print(stderr,
               "usage: bench_memory_checkpoints [THREADS] [ROUNDS] [bf16|f32] [INTERVAL]\n");
    return 2;
  }
  const std::string name = fmt::format("sortie-bench-memory-{}", ::getpid());
  const Folders folders{std::filesystem::path("/tmp") / name,
                        std::filesystem::path("/dev/shm") / name};
  std::filesystem::create_directories(folders.memory);
  const Result<> done = run(folders, threads, rounds, f32 ? DType::f32 : DType::bf16, interval);
  std::error_code ignored;
  std::filesystem::remove_all(folders.save, ignored);
  std::filesystem::remove_all(folders.memory, ignored);
  if (!done) fmt::print(stderr, "bench_memory_checkpoints: {}\n", done.error().message);
  return done ? 0 : 1;
}
