// bench_gpt124m_step [THREADS] [bf16|f32] [STEPS]: one training step of a 124M GPT (12 layers, 768,
// 12 heads, vocabulary 50304, B4 T256), compared with the time of its matrix products alone, which
// are measured in the same run, before and after the steps.
#include <fmt/core.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "tests/bench/gpt124m.h"
#include "tests/bench/median.h"
#include "tests/bench/random_source.h"
#include "trainer/loop/trainer.h"
#include "trainer/metrics/memory.h"
#include "trainer/parallel/communicator.h"

namespace {

using namespace sortie;
using namespace sortie::trainer;

Result<> run(int threads, DType dtype, int steps) {
  const bench::GptShape shape;
  const config::JobConfig job = bench::gpt_job(shape);
  const CpuFacts cpu = cpu_facts();
  omp_set_num_threads(threads);
  const auto before = bench::measure_step_floor(shape, dtype, threads);

  RankContext rank;
  rank.threads = threads;
  const config::BatchPlan batch{1, shape.batch, 1, shape.batch};
  bench::RandomSource source(shape.vocab);
  SORTIE_ASSIGN_OR_RETURN(EventSink events, EventSink::open(""));
  const auto communicator = make_single_communicator();
  Trainer trainer(job, batch, rank, *communicator, events, source, {}, cpu, dtype, "bench");
  SORTIE_TRY(trainer.start());
  std::vector<double> seconds;
  for (int i = 0; i < steps + 2; ++i) {  // the first two create plans and fill the arena
    const auto begin = std::chrono::steady_clock::now();
    SORTIE_TRY(trainer.step());
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  seconds.erase(seconds.begin(), seconds.begin() + 2);
  const std::size_t peak = peak_memory_bytes();
  const auto after = bench::measure_step_floor(shape, dtype, threads);

  bench::print_floor(after);
  const double floor = std::min(bench::floor_seconds(before), bench::floor_seconds(after));
  const double best = *std::ranges::min_element(seconds);
  const double tokens = static_cast<double>(shape.batch * shape.tokens);
  fmt::print("\n{}, {}, {} thread{}, {}\n", cpu.model, cpu.isa, threads, threads == 1 ? "" : "s",
             dtype_name(dtype));
  fmt::print("products alone  {:8.1f} ms ({:.1f} before the steps, {:.1f} after them)\n",
             floor * 1e3, bench::floor_seconds(before) * 1e3, bench::floor_seconds(after) * 1e3);
  fmt::print("step, best      {:8.1f} ms   {:6.0f} tokens/s\n", best * 1e3, tokens / best);
  fmt::print("step, median    {:8.1f} ms   {:6.0f} tokens/s\n", bench::median(seconds) * 1e3,
             tokens / bench::median(seconds));
  fmt::print("products / step {:8.1f} %\n", 100.0 * floor / best);
  fmt::print("peak memory     {:8.0f} MB\n", static_cast<double>(peak) / 1e6);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const bool f32 = argc > 2 && std::string_view(argv[2]) == "f32";
  const int steps = argc > 3 ? std::atoi(argv[3]) : 8;
  if (threads < 1 || steps < 1) {
    fmt::print(stderr, "usage: bench_gpt124m_step [THREADS] [bf16|f32] [STEPS]\n");
    return 2;
  }
  const Result<> done = run(threads, f32 ? DType::f32 : DType::bf16, steps);
  if (!done) fmt::print(stderr, "bench_gpt124m_step: {}\n", done.error().message);
  return done ? 0 : 1;
}
