// Tests of steps that begin before the step before has been read: the run is the same to the bit,
// and each report is of its own step.
#include <doctest/doctest.h>
#include <fmt/core.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "tests/support/event_listener.h"
#include "tests/support/every_case.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"
#include "tests/support/tiny_training.h"
#include "trainer/checkpoint/find.h"
#include "trainer/parallel/thread_ranks.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;
using sortie::test::contains;

namespace {

/// A progression with different targets in one step.
class OneBadStepSource final : public SampleSource {
 public:
  OneBadStepSource(std::int64_t vocab, std::int64_t step, std::int64_t batch)
      : plain_(vocab), vocab_(vocab), begin_((step - 1) * batch), end_(step * batch) {}
  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override {
    SORTIE_TRY(plain_.sample(index, tokens, targets));
    if (index >= begin_ && index < end_)
      for (std::int32_t& target : targets)
        target = static_cast<std::int32_t>((target + vocab_ / 2) % vocab_);
    return {};
  }
  std::string fingerprint() const override { return "one bad step"; }
  std::int64_t samples_per_epoch() const override { return 1000; }

 private:
  ProgressionSource plain_;
  std::int64_t vocab_, begin_, end_;
};

struct ReadRun {
  std::vector<double> losses, norms;  // by step
  std::vector<bool> skipped;
  std::vector<float> weights, moments;
  std::int64_t updates = 0, consumed = 0;
  OutlierState seen;
  std::vector<std::int64_t> checkpoints;
  bool operator==(const ReadRun&) const = default;
};

void keep_end(TinyTraining& training, ReadRun& run) {
  ParameterStore& store = training.trainer->store();
  run.weights = host_values(store, store.master());
  run.moments = host_values(store, store.moment2());
  run.updates = training.trainer->progress().updates;
  run.consumed = training.trainer->progress().consumed_samples;
  run.seen = training.trainer->progress().losses;
  if (training.job.trainer.save_dir.empty()) return;
  const auto entries = list_checkpoints(training.job.trainer.save_dir, CheckDepth::hashes);
  REQUIRE(entries);
  for (const CheckpointEntry& entry : *entries) run.checkpoints.push_back(entry.step);
}

config::JobConfig late_job(const std::string& save_dir) {
  config::JobConfig job = tiny_job();
  job.trainer.train_iterations = 40;
  job.learning_rate_scheduler.learning_rate_decay_style = "constant";
  job.optimizer.gradient_clipping = 1.0;
  job.optimizer.outlier_window = 8;
  job.trainer.save_dir = save_dir;
  job.trainer.save_interval = save_dir.empty() ? 0 : 7;
  job.trainer.keep_last = 0;
  job.trainer.on_loss_spike = "skip";
  job.trainer.loss_spike_ratio = 1.5;
  return job;
}

constexpr std::int64_t kBadStep = 33;

std::unique_ptr<SampleSource> with_bad_step(const config::JobConfig& job) {
  return std::make_unique<OneBadStepSource>(job.model.vocab_size, kBadStep,
                                            job.topology.global_batch_size);
}

/// Trains with each step read before the next one begins.
ReadRun read_at_once(const config::JobConfig& job) {
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator, DType::f32, 1, with_bad_step(job));
  ReadRun run;
  while (training.trainer->progress().step < job.trainer.train_iterations) {
    const auto report = training.trainer->step();
    REQUIRE(report);
    run.losses.push_back(report->loss);
    run.norms.push_back(report->grad_norm);
    run.skipped.push_back(report->skipped);
    REQUIRE(training.trainer->after_step(*report));
  }
  keep_end(training, run);
  return run;
}

/// Trains by run() on a device that works concurrently with the host: a GPU, or the CPU with
/// deferred ops.
ReadRun read_late(const config::JobConfig& job, std::uint64_t seed) {
  const sortie::test::ScopedTempDir dir;
  EventListener listener(dir.str("socket"));
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator, DType::f32, 1, with_bad_step(job));
  training.events = listener.connect();
  if (device().kind == DeviceKind::cpu) training.trainer->context().defer(seed);
  const auto ended = training.trainer->run();
  REQUIRE_MESSAGE(ended, (ended ? "" : ended.error().message));
  ReadRun run;
  std::int64_t step = 0;
  for (const nlohmann::json& event : listener.events("step")) {
    CHECK(event["step"] == ++step);
    run.losses.push_back(event["loss"]);
    run.norms.push_back(event["grad_norm"]);
    run.skipped.push_back(event.value("skipped", false));
  }
  int notes = 0;
  for (const nlohmann::json& event : listener.events("note"))
    if (contains(event["text"].get<std::string>(), ", step skipped ("))
      notes += contains(event["text"].get<std::string>(), fmt::format("step {}: ", kBadStep));
  CHECK(notes == 1);
  keep_end(training, run);
  return run;
}

bool device_is_guarded() {
  return device().kind != DeviceKind::cpu && device().kind != DeviceKind::cuda;
}

}  // namespace

TEST_CASE("steps that are read late make the same run, and are told under their own numbers") {
  if (device_is_guarded()) return;  // nothing is late there
  const sortie::test::ScopedTempDir dir;
  const ReadRun expected = read_at_once(late_job(dir.str("at-once")));
  CHECK(expected.updates == 39);
  CHECK(expected.skipped[kBadStep - 1]);
  CHECK(expected.checkpoints == std::vector<std::int64_t>{40, 35, 28, 21, 14, 7});
  // On a GPU, the order does not depend on the seed.
  const std::uint64_t seeds = on_gpu() ? 1 : sortie::test::every_case() ? 10 : 2;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    const ReadRun late = read_late(late_job(dir.str(fmt::format("late-{}", seed))), seed);
    CHECK(late.losses == expected.losses);
    CHECK(late.norms == expected.norms);
    CHECK(late == expected);
  }
}

TEST_CASE("replicas whose steps are read late stay equal, and equal those read at once") {
  if (device().kind != DeviceKind::cpu) return;  // only CPU contexts can defer ops
  for (const std::string sharding : {"none", "optimizer", "full"}) {
    CAPTURE(sharding);
    const auto weights_of = [&](std::uint64_t seed) {
      std::mutex mutex;
      std::vector<std::vector<float>> all;
      run_thread_ranks(2, [&](Communicator& world) {
        config::JobConfig job = late_job("");
        job.topology.parameter_sharding = sharding;
        job.trainer.train_iterations = 12;
        TinyTraining training(job, world);
        if (seed != 0)
          training.trainer->context().defer(seed + static_cast<std::uint64_t>(world.rank()));
        const auto ended = training.trainer->run();
        SORTIE_CHECK(ended.has_value(), "{}", ended ? "" : ended.error().message);
        ParameterStore& store = training.trainer->store();
        store.await_values();  // of the other rank, too
        std::vector<float> weights = host_values(store, store.master());
        const std::lock_guard lock(mutex);
        all.push_back(std::move(weights));
      });
      REQUIRE(all.size() == 2);
      if (sharding == "none") CHECK(all[0] == all[1]);
      std::ranges::sort(all);
      return all;
    };
    CHECK(weights_of(100) == weights_of(0));
  }
}
