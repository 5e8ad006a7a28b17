// bench_async_save [FOLDER] [THREADS] [ROUNDS] [bf16|f32] [STEPS]: checkpoints of a 124M GPT (B4
// T256) in the background of training. Measures how long training stalls, compared with a blocking
// save, and the pace of the steps until the commit, compared with the pace without a save. Rounds
// are interleaved.
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

double timed_step(Trainer& trainer) {
  const auto begin = Clock::now();
  const auto report = trainer.step();
  SORTIE_CHECK(report.has_value(), "{}", report ? "" : report.error().message);
  return seconds_since(begin);
}

/// A round makes `steps` steps without a save before its saves, and as many after them.
Result<> run(const std::filesystem::path& folder, int threads, int rounds, int steps, DType dtype) {
  const bench::GptShape shape;
  config::JobConfig job = bench::gpt_job(shape);
  const CpuFacts cpu = cpu_facts();
  omp_set_num_threads(threads);
  RankContext rank;
  rank.threads = threads;
  const config::BatchPlan batch{1, shape.batch, 1, shape.batch};
  bench::RandomSource source(shape.vocab);
  SORTIE_ASSIGN_OR_RETURN(EventSink events, EventSink::open(""));
  const auto communicator = make_single_communicator();
  Trainer trainer(job, batch, rank, *communicator, events, source, {}, cpu, dtype, "bench");
  SORTIE_TRY(trainer.start());
  config::JobConfig saving = job;
  saving.trainer.save_dir = folder;
  saving.trainer.save_interval = 1;
  saving.trainer.keep_last = 1;
  BitFacts facts;
  facts.threads = threads;
  Checkpointer saver(saving, facts, trainer.store(), trainer.layout(), trainer.context());
  SORTIE_TRY(saver.prepare());
  if (const std::string why = saver.reserve_snapshot(); !why.empty())
    return fail(ErrorCode::unsupported, why);

  for (int i = 0; i < 2; ++i) timed_step(trainer);
  TrainingProgress progress;
  std::vector<double> alone, beside, blocking, stalls, commits, shares, paces;
  for (int round = 0; round < rounds; ++round) {
    std::vector<double> before, during;
    for (int i = 0; i < steps; ++i) before.push_back(timed_step(trainer));
    ++progress.step;
    const auto begin = Clock::now();
    SORTIE_TRY(saver.save(progress));
    blocking.push_back(seconds_since(begin));
    timed_step(trainer);  // refills the caches
    ++progress.step;
    saver.begin_save(progress, {Checkpointer::Series::regular});
    std::vector<Checkpointer::Outcome> outcomes;
    while (outcomes.empty()) {
      during.push_back(timed_step(trainer));
      outcomes = saver.take_outcomes();
    }
    if (!outcomes[0].saved) return std::unexpected(outcomes[0].saved.error());
    stalls.push_back(outcomes[0].saved->stall_seconds);
    commits.push_back(outcomes[0].saved->seconds);
    for (int i = 0; i < steps; ++i) before.push_back(timed_step(trainer));
    double sum = 0.0;
    for (const double one : during) sum += one;
    alone.push_back(bench::median(before));
    beside.push_back(sum / static_cast<double>(during.size()));
    shares.push_back(stalls.back() / blocking.back());
    paces.push_back(alone.back() / beside.back());
    fmt::print(
        "round {}: blocking {:.3f} s; stall {:.3f} s, commit after {:.2f} s and {} steps; step "
        "{:.3f} s "
        "alone, {:.3f} s beside\n",
        round + 1, blocking.back(), stalls.back(), commits.back(), during.size(), alone.back(),
        beside.back());
  }
  std::int64_t bytes = 0;
  for (const auto& parameter : trainer.store().parameters()) bytes += parameter->elements() * 12;
  fmt::print("\n{}, {}, {} thread{}, {}; {} MB in {}, medians of {} rounds\n", cpu.model, cpu.isa,
             threads, threads == 1 ? "" : "s", dtype_name(dtype), bytes / 1'000'000,
             folder.parent_path().string(), rounds);
  fmt::print("save that training waits for      {:8.3f} s\n", bench::median(blocking));
  fmt::print("stall of a background save        {:8.3f} s   share {:.3f}\n", bench::median(stalls),
             bench::median(shares));
  fmt::print("its commit after                  {:8.3f} s\n", bench::median(commits));
  fmt::print("step alone / step until then      {:8.3f} s / {:.3f} s   pace {:.3f}\n",
             bench::median(alone), bench::median(beside), bench::median(paces));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  trainer::make_threads_wait_passively(argv);
  const std::filesystem::path place = argc > 1 ? argv[1] : "/tmp";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 5;
  const bool f32 = argc > 4 && std::string_view(argv[4]) == "f32";
  const int steps = argc > 5 ? std::atoi(argv[5]) : 4;
  ::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (threads < 1 || rounds < 1 || steps < 1) {
    fmt::print(stderr, "usage: bench_async_save [FOLDER] [THREADS] [ROUNDS] [bf16|f32] [STEPS]\n");
    return 2;
  }
  const std::filesystem::path folder = place / fmt::format("sortie-bench-async-{}", ::getpid());
  const Result<> done = run(folder, threads, rounds, steps, f32 ? DType::f32 : DType::bf16);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  if (!done) fmt::print(stderr, "bench_async_save: {}\n", done.error().message);
  return done ? 0 : 1;
}
