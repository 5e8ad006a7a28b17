#include "trainer/bench/step.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "trainer/loop/trainer.h"
#include "trainer/planning/rank_plan.h"
#include "trainer/random/random.h"

namespace sortie::trainer {
namespace {

constexpr std::int64_t kMany = 3;  // micro-batches in the longer steps
constexpr int kLeastSteps = 3;     // of a kind, without the first one

double seconds_between(std::chrono::steady_clock::time_point from,
                       std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

class RandomSource final : public SampleSource {
 public:
  explicit RandomSource(std::int64_t vocab) : vocab_(static_cast<std::uint64_t>(vocab)) {}
  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override {
    const auto first = static_cast<std::uint64_t>(index) * (tokens.size() + 1);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = token(first + i);
      targets[i] = token(first + i + 1);
    }
    return {};
  }
  std::string fingerprint() const override { return "random"; }
  std::int64_t samples_per_epoch() const override { return std::int64_t{1} << 40; }

 private:
  std::int32_t token(std::uint64_t index) const {
    return static_cast<std::int32_t>(random_bits(7, index) % vocab_);
  }
  std::uint64_t vocab_;
};

/// Reduces the job to what determines a step of one rank: no files, and no work besides the step.
config::JobConfig alone(config::JobConfig job, std::int64_t layers) {
  job.topology = {};
  const config::TrainerConfig trainer = job.trainer;
  job.trainer = {};
  job.trainer.seed = trainer.seed;
  job.trainer.device = trainer.device;
  job.trainer.cuda_graphs = trainer.cuda_graphs;
  job.trainer.train_iterations = 1'000'000;
  job.profiler = {};
  job.outer = {};
  job.model.preset.clear();
  if (layers > 0) job.model.num_layers = layers;
  return job;
}

/// Returns the seconds of the fastest step with `count` micro-batches. Slower ones competed with
/// other work.
Result<double> seconds_of_step(config::JobConfig job, std::int64_t micro, std::int64_t count,
                               const RankContext& rank, const CpuFacts& cpu, DType precision,
                               double limit) {
  job.topology.micro_batch_size = micro;
  job.topology.gradient_accumulation_steps = count;
  job.topology.global_batch_size = micro * count;
  const config::BatchPlan batch = config::resolve_batch(job.topology, 1).plan;
  const auto communicator = make_single_communicator();
  SORTIE_ASSIGN_OR_RETURN(EventSink events, EventSink::open(""));
  RandomSource samples(job.model.vocab_size);
  Trainer trainer(job, batch, rank, *communicator, events, samples, {}, cpu, precision, "bench");
  SORTIE_TRY(trainer.start());
  SORTIE_TRY(trainer.step());  // allocates
  double fastest = std::numeric_limits<double>::infinity();
  const auto begin = std::chrono::steady_clock::now();
  auto last = begin;
  for (int steps = 0; steps < kLeastSteps || seconds_between(begin, last) < limit; ++steps) {
    SORTIE_TRY(trainer.step());
    const auto now = std::chrono::steady_clock::now();
    fastest = std::min(fastest, seconds_between(std::exchange(last, now), now));
  }
  return fastest;
}

}  // namespace

Result<StepSeconds> bench_step(config::JobConfig job, const RankContext& rank, const CpuFacts& cpu,
                               DType precision, const StepBench& bench) {
  job = alone(std::move(job), bench.layers);
  StepSeconds found;
  found.layers = job.model.num_layers;
  found.sequence_length = job.model.sequence_length;
  std::vector<std::int64_t> sizes = bench.micro_batch_sizes;
  std::ranges::sort(sizes);
  for (const std::int64_t micro : sizes) {
    PlanOptions options{.micro_batch_size = micro,
                        .dtype = precision,
                        .threads = rank.threads,
                        .gpu = rank.compute.gpu.has_value()};
    SORTIE_ASSIGN_OR_RETURN(const RankPlan plan, plan_rank(job, options));
    found.trained = plan.parameters.trained;
    const auto step = [&](std::int64_t count) {
      return seconds_of_step(job, micro, count, rank, cpu, precision, bench.seconds / 2);
    };
    SORTIE_ASSIGN_OR_RETURN(const double one, step(1));
    SORTIE_ASSIGN_OR_RETURN(const double many, step(kMany));
    const double pass = std::max((many - one) / (kMany - 1), one / 100);
    const double tokens = static_cast<double>(micro * job.model.sequence_length);
    found.passes.push_back({micro, pass, plan.flop_per_token * tokens});
    // Measured with the shortest passes: with longer ones, the update is smaller than the variation
    // between steps.
    if (found.passes.size() == 1) found.update = std::max(0.0, one - pass);
  }
  return found;
}

}  // namespace sortie::trainer
