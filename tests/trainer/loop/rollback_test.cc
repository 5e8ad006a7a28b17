// Tests of the policies for steps that go wrong: skip, stop, and rollback to an earlier checkpoint,
// to the bit.
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <mutex>

#include "tests/support/every_case.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"
#include "tests/support/tiny_training.h"
#include "trainer/checkpoint/file_ops.h"
#include "trainer/checkpoint/find.h"
#include "trainer/parallel/thread_ranks.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;
using sortie::test::contains;

namespace {

constexpr std::int64_t kBatch = 8;

/// A progression in which the samples [begin, end) have other targets, which give a loss that the
/// model has never seen. From sample `from` on, `shift` samples are left out.
class SpikedSource final : public SampleSource {
 public:
  struct Course {
    std::int64_t begin = 0, end = 0;   // bad samples
    std::int64_t from = 0, shift = 0;  // samples that are left out
    std::int64_t again = 0;            // the same number of bad samples, once more from here on
  };
  SpikedSource(std::int64_t vocab, Course course) : plain_(vocab), vocab_(vocab), course_(course) {}
  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override {
    if (index >= course_.from) index += course_.shift;
    SORTIE_TRY(plain_.sample(index, tokens, targets));
    const std::int64_t length = course_.end - course_.begin;
    const bool second =
        course_.again > 0 && index >= course_.again && index < course_.again + length;
    if (second || (index >= course_.begin && index < course_.end))
      for (std::int32_t& target : targets)
        target = static_cast<std::int32_t>((target + vocab_ / 2) % vocab_);
    return {};
  }
  std::string fingerprint() const override { return "spiked"; }
  std::int64_t samples_per_epoch() const override { return 1000; }

 private:
  ProgressionSource plain_;
  std::int64_t vocab_;
  Course course_;
};

/// Returns a job of 40 steps. Within the first twenty, the loss falls below a third of its first
/// value.
config::JobConfig spiky_job(const std::string& save_dir) {
  config::JobConfig job = tiny_job();
  job.trainer.train_iterations = 40;
  job.learning_rate_scheduler.learning_rate_decay_style = "constant";
  job.trainer.save_dir = save_dir;
  job.trainer.save_interval = save_dir.empty() ? 0 : 5;
  job.trainer.keep_last = 0;
  job.trainer.on_loss_spike = "rollback 3";
  job.trainer.loss_spike_ratio = 1.5;
  job.optimizer.outlier_window = 8;
  return job;
}

/// Step 33 is the bad one.
constexpr SpikedSource::Course kBadStep33{32 * kBatch, 33 * kBatch, 0, 0};

std::unique_ptr<SampleSource> spiked(const config::JobConfig& job, SpikedSource::Course course) {
  return std::make_unique<SpikedSource>(job.model.vocab_size, course);
}

struct TrainedState {
  std::vector<float> weights, moments;
  bool operator==(const TrainedState&) const = default;
};
TrainedState state_after(TinyTraining& training) {
  ParameterStore& store = training.trainer->store();
  return {host_values(store, store.master()), host_values(store, store.moment2())};
}

/// If `late_seed` is not 0, ops are deferred, and a step is read after the next one has begun.
TrainedState train_spiky(const config::JobConfig& job, SpikedSource::Course course,
                         std::uint64_t late_seed = 0) {
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator, DType::f32, 1, spiked(job, course));
  if (late_seed != 0) training.trainer->context().defer(late_seed);
  const auto outcome = training.trainer->run();
  REQUIRE_MESSAGE(outcome, (outcome ? "" : outcome.error().message));
  CHECK(training.trainer->progress().step == job.trainer.train_iterations);
  return state_after(training);
}

/// Takes a step and does what is due after it.
Result<> take_step(TinyTraining& training) {
  SORTIE_ASSIGN_OR_RETURN(const StepReport report, training.trainer->step());
  return training.trainer->after_step(report);
}

/// Runs the job in a child process, which may be killed at a file operation. Exit codes: 0 if it
/// reached its end, 3 if it did not start or failed.
int run_in_child(const config::JobConfig& job, SpikedSource::Course course,
                 const std::string& fault) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    (void)file_ops::set_fault(fault);
    const auto communicator = make_single_communicator();
    TinyTraining training(job, *communicator, DType::f32, 1, spiked(job, course));
    const auto outcome = training.trainer->run();
    ::_exit(outcome ? 0 : 3);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("a run that goes back from a spike equals one that never had these samples") {
  const sortie::test::ScopedTempDir dir;
  const config::JobConfig job = spiky_job(dir.str("rolled"));
  const TrainedState rolled = train_spiky(job, kBadStep33);
  // Rolls back from step 33 to 30: the samples of steps 31 to 33 are left out.
  config::JobConfig plain = spiky_job("");
  plain.trainer.on_loss_spike = "ignore";
  CHECK(rolled == train_spiky(plain, {0, 0, 30 * kBatch, 3 * kBatch}));
  CHECK_FALSE(rolled == train_spiky(plain, {}));

  const auto latest = find_latest(dir / "rolled", CheckDepth::hashes);
  REQUIRE(latest);
  REQUIRE(latest->entry);
  const Manifest& manifest = *latest->entry->manifest;
  CHECK(manifest.step == 40);
  CHECK(manifest.consumed_samples == 40 * kBatch);
  REQUIRE(manifest.rollbacks.size() == 1);
  CHECK(manifest.rollbacks[0].from == 33);
  CHECK(manifest.rollbacks[0].to == 30);
  CHECK(manifest.rollbacks[0].skipped == 3 * kBatch);
  CHECK(contains(manifest.rollbacks[0].reason, " times its mean of "));
}

TEST_CASE("a run that reads its steps late goes back from a spike alike") {
  if (device().kind != DeviceKind::cpu) return;  // a GPU reads late in all of these tests
  const sortie::test::ScopedTempDir dir;
  const TrainedState at_once = train_spiky(spiky_job(dir.str("at-once")), kBadStep33);
  CHECK(train_spiky(spiky_job(dir.str("late")), kBadStep33, 5) == at_once);
  const auto latest = find_latest(dir / "late", CheckDepth::hashes);
  REQUIRE(latest);
  REQUIRE(latest->entry);
  const Manifest& manifest = *latest->entry->manifest;
  CHECK(manifest.consumed_samples == 40 * kBatch);
  REQUIRE(manifest.rollbacks.size() == 1);
  CHECK(manifest.rollbacks[0].from == 33);
  CHECK(manifest.rollbacks[0].to == 30);
  CHECK(manifest.rollbacks[0].skipped == 3 * kBatch);
}

TEST_CASE("what is due at the first step after a rollback is done") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = spiky_job(dir.str("rolled"));
  job.trainer.save_interval = 1;
  job.trainer.train_iterations = 34;
  train_spiky(job, kBadStep33);  // rolls back from step 33 to 30
  const auto entries = list_checkpoints(dir / "rolled", CheckDepth::sizes);
  REQUIRE(entries);
  std::vector<std::int64_t> later;
  for (const CheckpointEntry& entry : *entries)
    if (entry.manifest->rollbacks.size() == 1) later.push_back(entry.step);
  CHECK(later == std::vector<std::int64_t>{34, 33, 32, 31});
}

TEST_CASE("a rollback goes far enough, and says when nothing is there to go back to") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = spiky_job(dir.str("far"));
  job.trainer.on_loss_spike = "rollback 4";  // step 30 is only 3 steps before 33
  train_spiky(job, kBadStep33);
  const auto latest = find_latest(dir / "far");
  REQUIRE(latest->entry);
  CHECK(latest->entry->manifest->rollbacks[0].to == 25);

  job = spiky_job(dir.str("young"));
  job.trainer.on_loss_spike = "rollback 33";
  train_spiky(job, kBadStep33);
  CHECK(find_latest(dir / "young")->entry->manifest->rollbacks[0].to == 5);

  job = spiky_job(dir.str("nowhere"));
  job.trainer.save_interval = 34;
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator, DType::f32, 1, spiked(job, kBadStep33));
  const auto outcome = training.trainer->run();
  REQUIRE_FALSE(outcome);
  CHECK(outcome.error().code == ErrorCode::diverged);
  CHECK(contains(outcome.error().message, "step 33: the loss of "));
  CHECK(contains(outcome.error().message, "there is no checkpoint of step 32 or earlier in "));
  CHECK(contains(outcome.error().message, "; use the policy \"skip\" to get past this step"));
}

TEST_CASE("a bad step soon after a rollback goes back to the checkpoint that is left") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = spiky_job(dir.str("soon"));
  job.trainer.keep_last = 2;  // the fewest that the rules of the config accept
  // The first rollback is from step 37 to 30. Step 32 is then the second bad one.
  const std::int64_t first = 36 * kBatch;
  const SpikedSource::Course course{first, first + kBatch, 0, 0, first + 2 * kBatch};
  train_spiky(job, course);
  const auto latest = find_latest(dir / "soon");
  REQUIRE(latest->entry);
  const std::vector<Rollback>& rollbacks = latest->entry->manifest->rollbacks;
  REQUIRE(rollbacks.size() == 2);
  CHECK(rollbacks[0].from == 37);
  CHECK(rollbacks[0].to == 30);
  CHECK(rollbacks[1].from == 32);
  CHECK(rollbacks[1].to == 30);
}

TEST_CASE("a run that does not get past a step gives up") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = spiky_job(dir.str("stuck"));
  job.trainer.max_consecutive_skips = 3;
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator, DType::f32, 1,
                        spiked(job, {32 * kBatch, 1'000'000, 0, 0}));
  const auto outcome = training.trainer->run();
  REQUIRE_FALSE(outcome);
  CHECK(outcome.error().code == ErrorCode::diverged);
  CHECK(contains(outcome.error().message, "has gone back 3 times in a row"));
  const auto file = read_rollbacks(dir / "stuck");
  REQUIRE(file);
  REQUIRE(file->has_value());
  CHECK((*file)->rollbacks.size() == 3);
}

TEST_CASE("a run that rolls back and is killed at any file operation equals itself") {
  const sortie::test::ScopedTempDir dir("/dev/shm");
  const TrainedState whole = train_spiky(spiky_job(dir.str("whole")), kBadStep33);
  std::uint64_t operations = 0;
  {
    REQUIRE(file_ops::set_fault(""));
    train_spiky(spiky_job(dir.str("counted")), kBadStep33);
    operations = file_ops::operations();
  }
  // Every operation would take minutes, and on guarded memory more than an hour, so by default only
  // some are tested. Other tests cover the saves before the rollback. Files do not depend on the
  // device.
  const bool every_one = sortie::test::every_case() && device().kind == DeviceKind::cpu;
  const std::uint64_t stride = every_one ? 1 : 41;
  int killed = 0;
  for (std::uint64_t at = 1; at <= operations; at += stride) {
    CAPTURE(at);
    const sortie::test::ScopedTempDir own("/dev/shm");
    config::JobConfig job = spiky_job(own.str("run"));
    job.trainer.async_save = false;  // the same operations in the same order
    const int code = run_in_child(job, kBadStep33, fmt::format("checkpoint:{}:kill", at));
    CHECK((code == 137 || code == 0));
    killed += code == 137 ? 1 : 0;
    REQUIRE(train_spiky(job, kBadStep33) == whole);
    const auto entries = list_checkpoints(own / "run", CheckDepth::hashes);
    REQUIRE(entries);
    for (const CheckpointEntry& entry : *entries) CHECK(entry.manifest.has_value());
  }
  CHECK(killed > 3);
}

TEST_CASE("a step that is stopped at is an error, and its update is not made") {
  for (const char* key : {"on_loss_spike", "on_nonfinite"}) {
    CAPTURE(key);
    const sortie::test::ScopedTempDir dir;
    config::JobConfig job = spiky_job(dir.str("stop"));
    job.trainer.on_loss_spike = "stop";
    job.trainer.on_nonfinite = "stop";
    job.trainer.cuda_graphs =
        "off";  // gradients are written between ops; a graph has no such points
    const bool spike = std::string_view(key) == "on_loss_spike";
    const auto communicator = make_single_communicator();
    TinyTraining training(job, *communicator, DType::f32, 1,
                          spiked(job, spike ? kBadStep33 : SpikedSource::Course{}));
    // The number of steps that are read by then: a GPU still has step 32 in flight while it
    // computes step 33.
    const std::int64_t read_before = on_gpu() ? 31 : 32;
    if (!spike)
      training.trainer->context().set_poll([&] {
        if (training.trainer->progress().step == read_before)
          host_view(training.trainer->store(), training.trainer->store().gradients())[3] =
              std::nanf("");
      });
    const auto outcome = training.trainer->run();
    REQUIRE_FALSE(outcome);
    CHECK(outcome.error().code == ErrorCode::diverged);
    CHECK(outcome.error().message.starts_with("step 33: "));
    CHECK(contains(outcome.error().message, fmt::format("and trainer.{} is \"stop\"", key)));
    CHECK(training.trainer->progress().updates == 32);
    CHECK(find_latest(dir / "stop")->entry->step == 30);
  }
}

TEST_CASE("checkpoints soon after a spike that was skipped are suspect") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = spiky_job(dir.str("skip"));
  job.trainer.on_loss_spike = "skip";
  job.trainer.train_iterations = 50;
  train_spiky(job, kBadStep33);
  std::vector<std::int64_t> suspect;
  const auto entries = list_checkpoints(dir / "skip", CheckDepth::sizes);
  REQUIRE(entries);
  for (const CheckpointEntry& entry : *entries)
    if (entry.manifest->suspect) suspect.push_back(entry.step);
  CHECK(suspect == std::vector<std::int64_t>{40, 35});  // ten healthy steps end after step 43
}

TEST_CASE("all ranks go back alike, whichever had the value that is not finite") {
  const sortie::test::ScopedTempDir dir;
  std::mutex mutex;
  std::vector<TrainedState> states;
  std::vector<std::vector<Rollback>> rollbacks;
  std::string error;
  run_thread_ranks(2, [&](Communicator& communicator) {
    config::JobConfig job = spiky_job(dir.str("both"));
    job.trainer.on_loss_spike = "ignore";
    job.trainer.on_nonfinite = "rollback 2";
    job.trainer.train_iterations = 20;
    TinyTraining training(job, communicator, DType::f32, 1, spiked(job, {}));
    bool done = false;
    while (training.trainer->progress().step < 20) {
      if (training.trainer->progress().step == 11 && !done) {  // once, in step 12 of one rank
        done = true;
        ParameterStore& store = training.trainer->store();
        if (communicator.rank() == 1) host_view(store, store.gradients())[3] = std::nanf("");
      }
      if (const Result<> taken = take_step(training); !taken) {
        const std::lock_guard lock(mutex);
        error = taken.error().message;
        return;
      }
    }
    const std::lock_guard lock(mutex);
    states.push_back(state_after(training));
    const auto file = read_rollbacks(dir / "both");
    if (file && *file) rollbacks.push_back((*file)->rollbacks);
  });
  CHECK(error == "");
  REQUIRE(states.size() == 2);
  CHECK(states[0] == states[1]);
  REQUIRE_FALSE(rollbacks.empty());
  REQUIRE(rollbacks[0].size() == 1);
  CHECK(rollbacks[0][0].from == 12);
  CHECK(rollbacks[0][0].to == 10);
  CHECK(rollbacks[0][0].skipped == 2 * kBatch);
}

TEST_CASE("replicas that differ go back to where they were equal, and end as if they never had") {
  const auto run = [](const std::string& save_dir, int culprit) {
    std::mutex mutex;
    std::vector<TrainedState> states;
    std::string error;
    run_thread_ranks(3, [&](Communicator& communicator) {
      config::JobConfig job = tiny_job();
      job.topology.global_batch_size = 12;
      job.trainer.train_iterations = 20;
      job.trainer.save_dir = save_dir;
      job.trainer.save_interval = 3;
      job.trainer.keep_last = 0;
      job.trainer.replica_check_interval = 4;
      job.trainer.on_replica_mismatch = "rollback 1";
      TinyTraining training(job, communicator);
      bool done = false;
      while (training.trainer->progress().step < 20) {
        // A bit flips once, after step 9. Step 12 detects it. The checkpoint of step 9 is newer
        // than the last one with equal replicas.
        if (training.trainer->progress().step == 9 && !done) {
          done = true;
          ParameterStore& store = training.trainer->store();
          if (communicator.rank() == culprit) host_view(store, store.moment2())[100] += 1e-3f;
        }
        if (const Result<> taken = take_step(training); !taken) {
          const std::lock_guard lock(mutex);
          error = taken.error().message;
          return;
        }
      }
      const std::lock_guard lock(mutex);
      states.push_back(state_after(training));
    });
    CHECK(error == "");
    REQUIRE(states.size() == 3);
    CHECK(states[0] == states[1]);
    CHECK(states[0] == states[2]);
    return states[0];
  };
  const sortie::test::ScopedTempDir dir;
  const TrainedState undisturbed = run(dir.str("plain"), -1);
  CHECK(run(dir.str("flipped"), 1) == undisturbed);
  const auto file = read_rollbacks(dir / "flipped");
  REQUIRE(file);
  REQUIRE(file->has_value());
  REQUIRE((*file)->rollbacks.size() == 1);
  const Rollback& back = (*file)->rollbacks[0];
  CHECK(back.from == 12);
  CHECK(back.to == 6);
  CHECK(back.skipped == 0);
  CHECK(contains(back.reason, "replicas differ: rank 1 (host-1) from the other ranks"));
}
