// The idle share of a pipeline's stages: the real schedule, and messages over the real transport,
// with passes that are timed sleeps. Prints one line for each number of runs per stage, and one for
// delayed gradients of weights (zero_bubble).
//
//   bench_pipeline_bubble [STAGES MICRO_BATCHES MILLISECONDS [BYTES]]
//
// Without ranks of a launcher the stages are threads of this process; as ranks of `sortie run` they
// communicate over MPI. MILLISECONDS: time of a micro-batch's forward pass through a stage; its
// backward pass takes twice that, half of it for the gradients of weights. BYTES: of a message.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "trainer/parallel/stage_exchange.h"
#include "trainer/parallel/thread_ranks.h"

using namespace sortie;
using namespace sortie::trainer;

namespace {

using Clock = std::chrono::steady_clock;
using Kind = PipelineAction::Kind;

struct Setting {
  int stages = 4;
  std::int64_t micro_batches = 16;
  double forward_ms = 200.0;
  std::int64_t bytes = 1 << 20;
};

/// Sleeps for the time of a pass, and polls the messages meanwhile, as ops do.
void work(StageExchange& exchange, double milliseconds) {
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double, std::milli>(milliseconds));
  while (Clock::now() < end) {
    std::this_thread::sleep_until(std::min(end, Clock::now() + std::chrono::milliseconds(1)));
    exchange.poll();
  }
}

/// Returns the share of the step in which this stage waited.
double idle_share(Communicator& stages, const PipelineShape& shape, const Setting& setting) {
  ExecutionContext context(1);
  StageExchange exchange(context, stages);
  StageExchange::Form form;
  form.width = setting.bytes / 4;
  form.rows = [](std::int64_t) { return std::int64_t{1}; };
  stages.barrier();
  const auto begin = Clock::now();
  exchange.begin(shape, StageExchange::Pass::training, std::move(form));
  double busy = 0.0;
  for (const PipelineAction& action : training_schedule(shape, stages.rank())) {
    const int at = shape.global_run(stages.rank(), action.run);
    const bool forward = action.kind == Kind::forward, backward = action.kind == Kind::backward;
    if ((forward && at > 0) || (backward && at + 1 < shape.runs())) (void)exchange.take(action);
    const double parts = backward && !shape.zero_bubble ? 2.0 : 1.0;
    const double takes = setting.forward_ms * parts / shape.interleave;
    work(exchange, takes);
    busy += takes;
    if (action.kind == Kind::weights) continue;
    exchange.send(action, {context.empty(DType::f32, {1, setting.bytes / 4}), {}});
  }
  exchange.finish();
  stages.barrier();
  const std::chrono::duration<double, std::milli> whole = Clock::now() - begin;
  return 1.0 - busy / whole.count();
}

void measure(Communicator& stages, const Setting& setting) {
  for (const auto& [interleave, zero_bubble] : {std::pair(1, false), {2, false}, {1, true}}) {
    const PipelineShape shape{stages.size(), interleave, setting.micro_batches, zero_bubble};
    (void)idle_share(stages, shape, setting);  // warm-up
    double idle = idle_share(stages, shape, setting);
    stages.all_reduce_sum({&idle, 1});
    idle /= stages.size();
    const double formula = bubble_share(shape);
    if (stages.rank() == 0)
      fmt::print(
          "stages {}, micro-batches {}, runs {}{}: idle {:.2f} %, {} = {:.2f} %, {:+.2f} points\n",
          shape.stages, shape.micro_batches, interleave, zero_bubble ? ", zero bubble" : "",
          100.0 * idle, zero_bubble ? "(p-1)/(3m+p-1)" : "(p-1)/(vm+p-1)", 100.0 * formula,
          100.0 * (idle - formula));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Setting setting;
  if (argc > 3) {
    setting.stages = std::atoi(argv[1]);
    setting.micro_batches = std::atoll(argv[2]);
    setting.forward_ms = std::atof(argv[3]);
  }
  if (argc > 4) setting.bytes = std::atoll(argv[4]);
  if (setting.stages < 2 || setting.micro_batches % setting.stages != 0 || setting.bytes < 4) {
    fmt::print(stderr,
               "usage: bench_pipeline_bubble [STAGES MICRO_BATCHES MILLISECONDS [BYTES]], "
               "with two stages or more and a multiple of them in micro-batches\n");
    return 2;
  }
  if (const char* world = std::getenv("WORLD_SIZE"); world != nullptr && std::getenv("RANK")) {
    auto made = make_mpi_communicator(std::atoi(std::getenv("RANK")), std::atoi(world));
    if (!made) {
      fmt::print(stderr, "{}\n", made.error().message);
      return 1;
    }
    measure(**made, setting);
    return 0;
  }
  run_thread_ranks(setting.stages, [&](Communicator& stages) { measure(stages, setting); });
  return 0;
}
