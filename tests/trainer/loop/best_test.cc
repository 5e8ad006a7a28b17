// Tests of the checkpoint of the lowest validation loss over restarts, failed saves and rollbacks:
// the checkpoint in save_dir/best is the one that counts.
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "tests/support/event_listener.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_training.h"
#include "trainer/checkpoint/file_ops.h"
#include "trainer/checkpoint/find.h"
#include "trainer/parallel/thread_ranks.h"
#include "trainer/state/start_point.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;
namespace fs = std::filesystem;

namespace {

/// Returns a job that validates and saves every ten steps. A learning rate of 0 would leave all
/// losses equal.
config::JobConfig validated_job(const std::string& save_dir) {
  config::JobConfig job = tiny_job();
  job.trainer.train_iterations = 20;
  job.trainer.save_dir = save_dir;
  job.trainer.save_interval = job.trainer.eval_interval = 10;
  job.trainer.eval_samples = 4;
  job.trainer.keep_last = 0;
  job.learning_rate_scheduler.learning_rate_decay_style = "constant";
  return job;
}

/// Takes a step and does what is due after it.
void advance_one(TinyTraining& training) {
  const auto report = training.trainer->step();
  REQUIRE_MESSAGE(report, (report ? "" : report.error().message));
  const auto after = training.trainer->after_step(*report);
  REQUIRE_MESSAGE(after, (after ? "" : after.error().message));
}

/// Takes steps like run(), but without a validation before the first one.
void advance(TinyTraining& training, std::int64_t to) {
  while (training.trainer->progress().step < to) advance_one(training);
}

/// Makes the gradients of the next step not finite.
void break_next_step(TinyTraining& training) {
  ParameterStore& store = training.trainer->store();
  host_view(store, store.gradients())[3] = std::nanf("");
}

void train_to_end(const config::JobConfig& job) {
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator);
  REQUIRE(training.trainer->run());
}

/// Returns the best validation of a run that has just started.
BestValidation best_at_start(const config::JobConfig& job) {
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator);
  return training.trainer->progress().best;
}

std::vector<CheckpointEntry> kept_in(const fs::path& save_dir) {
  auto entries = list_checkpoints(save_dir / "best", CheckDepth::hashes);
  REQUIRE(entries);
  return std::move(*entries);
}

/// Returns the only checkpoint in save_dir/best.
CheckpointEntry best_in(const fs::path& save_dir) {
  std::vector<CheckpointEntry> entries = kept_in(save_dir);
  REQUIRE(entries.size() == 1);
  REQUIRE(entries[0].manifest);
  return std::move(entries[0]);
}

double recorded_loss(const CheckpointEntry& entry) {
  return entry.manifest->scalars.at("best_validation_loss");
}

void replace_folder(const fs::path& from, const fs::path& to) {
  fs::remove_all(to);
  fs::copy(from, to, fs::copy_options::recursive);
}

/// A source whose targets differ from those of validation: training on it increases the validation
/// loss.
class MisleadingSource final : public SampleSource {
 public:
  explicit MisleadingSource(std::int64_t vocab) : plain_(vocab), vocab_(vocab) {}
  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override {
    SORTIE_TRY(plain_.sample(index, tokens, targets));
    for (std::int32_t& target : targets)
      target = static_cast<std::int32_t>((target + vocab_ / 2) % vocab_);
    return {};
  }
  std::string fingerprint() const override { return "misleading"; }
  std::int64_t samples_per_epoch() const override { return 1000; }

 private:
  ProgressionSource plain_;
  std::int64_t vocab_;
};

}  // namespace

TEST_CASE("a run goes on from its best checkpoint if that is the newest, to the bit") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig whole = validated_job(dir.str("whole"));
  whole.trainer.train_iterations = 30;
  train_to_end(whole);
  for (const bool any_regular : {true, false}) {
    CAPTURE(any_regular);
    config::JobConfig job = whole;
    job.trainer.save_dir = dir.str(any_regular ? "older" : "none");
    job.trainer.train_iterations = 20;
    train_to_end(job);
    const fs::path save_dir = job.trainer.save_dir;
    REQUIRE(best_in(save_dir).step == 20);
    // As if killed before the regular checkpoint.
    fs::remove_all(save_dir / "step-00000020");
    if (!any_regular) fs::remove_all(save_dir / "step-00000010");
    const auto start = choose_start(job.trainer);
    REQUIRE(start);
    CHECK(start->kind == StartPoint::Kind::resume);
    CHECK(start->folder == save_dir / "best/step-00000020");
    CHECK(best_at_start(job).step == 20);
    job.trainer.train_iterations = 30;
    train_to_end(job);
    const auto end = find_latest(save_dir);
    REQUIRE(end->entry);
    CHECK(end->entry->folder == save_dir / "step-00000030");
    CHECK(end->entry->manifest->shards[0].sha256 ==
          find_latest(dir / "whole")->entry->manifest->shards[0].sha256);
  }
}

TEST_CASE("a best checkpoint of another run is neither gone on from nor removed") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = validated_job(dir.str("other"));
  job.trainer.train_iterations = 40;
  train_to_end(job);
  job.trainer.save_dir = dir.str("run");
  job.trainer.train_iterations = 10;
  train_to_end(job);
  REQUIRE(best_in(dir / "run").step == 10);
  REQUIRE(best_in(dir / "other").step == 40);
  replace_folder(dir / "other/best/step-00000040", dir / "run/best/step-00000040");
  const auto latest = find_latest(dir / "run");
  REQUIRE(latest->entry);
  CHECK(latest->entry->folder == dir / "run/step-00000010");
  REQUIRE(latest->skipped.size() == 1);
  CHECK(latest->skipped[0] == dir.str("run/best/step-00000040") +
                                  ": it is of another run than those in " + dir.str("run"));
  job.trainer.train_iterations = 20;
  train_to_end(job);
  const std::vector<CheckpointEntry> kept = kept_in(dir / "run");
  REQUIRE(kept.size() == 2);
  CHECK(kept[0].step == 40);
  CHECK(kept[1].step == 20);
}

TEST_CASE("a best checkpoint that could not be saved is tried again, on every number of ranks") {
  for (const int ranks : {1, 2})
    for (const bool background : {false, true}) {
      CAPTURE(ranks);
      CAPTURE(background);
      const sortie::test::ScopedTempDir dir;
      config::JobConfig job = validated_job(dir.str("run"));
      job.trainer.train_iterations = 40;
      job.trainer.save_interval = 0;
      job.trainer.eval_interval = 5;
      job.trainer.async_save = background;
      job.learning_rate_scheduler.learning_rate = 0;
      run_thread_ranks(ranks, [&](Communicator& communicator) {
        TinyTraining training(job, communicator);
        advance(training, 4);
        communicator.barrier();
        if (communicator.rank() == 0) REQUIRE(file_ops::set_fault("checkpoint:1:enospc"));
        communicator.barrier();
        advance(training, 5);
        communicator.barrier();
        if (communicator.rank() == 0) CHECK(kept_in(dir / "run").empty());
        communicator.barrier();
        advance(training, 40);  // to the end: all saves that have begun are committed
        const std::int64_t step = training.trainer->progress().best.step;
        CHECK(step > 5);  // on every rank
        communicator.barrier();
        if (communicator.rank() != 0) return;
        CHECK(best_in(dir / "run").step == step);
      });
      REQUIRE(file_ops::set_fault(""));
    }
}

TEST_CASE("after a damaged best checkpoint was moved away the next validation is the best") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const sortie::test::ScopedTempDir dir;
    config::JobConfig job = validated_job(dir.str("run"));
    job.trainer.train_iterations = 2000;
    job.trainer.save_interval = 0;
    job.trainer.eval_interval = 5;
    job.trainer.async_save = false;
    job.trainer.scrub_interval = std::chrono::milliseconds(10);
    job.learning_rate_scheduler.learning_rate = 0;  // no later loss is lower
    run_thread_ranks(ranks, [&](Communicator& communicator) {
      TinyTraining training(job, communicator);
      advance(training, 5);
      CHECK(training.trainer->progress().best.step == 5);
      communicator.barrier();
      if (communicator.rank() == 0) {
        const CheckpointEntry entry = best_in(dir / "run");
        const fs::path shard = entry.folder / entry.manifest->shards[0].file;
        std::string bytes = sortie::test::read_text(shard);
        bytes.back() = static_cast<char>(bytes.back() ^ 1);
        sortie::test::write_text(shard, bytes);
        while (!fs::exists(dir / "run/quarantine/best-step-00000005")) std::this_thread::yield();
      }
      communicator.barrier();
      // The report of the verification follows the move.
      while (training.trainer->progress().best.step == 5 &&
             training.trainer->progress().step < 1000) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        advance(training, training.trainer->progress().step + 5);
      }
      const std::int64_t step = training.trainer->progress().best.step;
      CHECK(step > 5);
      communicator.barrier();
      if (communicator.rank() == 0) CHECK(best_in(dir / "run").step == step);
      communicator.barrier();
    });
  }
}

TEST_CASE("a loss that is recorded, and whose checkpoint was never committed, is not the lowest") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = validated_job(dir.str("run"));
  job.trainer.async_save = false;
  {
    const auto communicator = make_single_communicator();
    TinyTraining training(job, *communicator);
    advance(training, 15);
    fs::copy(dir / "run/best", dir / "best-of-10", fs::copy_options::recursive);
    advance(training, 20);
  }
  REQUIRE(best_in(dir / "run").step == 20);
  replace_folder(dir / "best-of-10", dir / "run/best");
  const CheckpointEntry kept = best_in(dir / "run");
  REQUIRE(kept.step == 10);
  // All ranks know it, even one with a different folder of that name.
  fs::create_directories(dir / "elsewhere");
  std::mutex mutex;
  std::vector<BestValidation> all;
  run_thread_ranks(2, [&](Communicator& communicator) {
    config::JobConfig own = job;
    if (communicator.rank() == 1) own.trainer.save_dir = dir.str("elsewhere");
    TinyTraining training(own, communicator);
    const std::lock_guard lock(mutex);
    all.push_back(training.trainer->progress().best);
  });
  REQUIRE(all.size() == 2);
  for (const BestValidation& best : all) {
    CHECK(best.step == 10);
    CHECK(best.loss == recorded_loss(kept));
  }
  fs::remove_all(dir / "run/best");
  CHECK(std::isinf(best_at_start(job).loss));
  job.trainer.keep_best = false;  // then only the recorded loss counts
  CHECK(best_at_start(job).step == 20);
}

TEST_CASE("a rollback takes the best checkpoint of the steps that it leaves away") {
  for (const int ranks : {1, 2})
    for (const bool background : {false, true}) {
      CAPTURE(ranks);
      CAPTURE(background);
      const sortie::test::ScopedTempDir dir;
      config::JobConfig job = validated_job(dir.str("run"));
      job.trainer.save_interval = 5;
      job.trainer.eval_interval = 4;
      job.trainer.async_save = background;  // the save may be in progress when the run rolls back
      job.trainer.on_nonfinite = "rollback 2";
      run_thread_ranks(ranks, [&](Communicator& communicator) {
        TinyTraining training(job, communicator);
        advance(training, 8);
        CHECK(training.trainer->progress().best.step == 8);
        if (communicator.rank() == 0) break_next_step(training);
        advance_one(training);
        REQUIRE(training.trainer->progress().step == 5);
        CHECK(std::isinf(training.trainer->progress().best.loss));  // on every rank
        communicator.barrier();
        if (communicator.rank() == 0) CHECK(kept_in(dir / "run").empty());
        communicator.barrier();
        advance(training, 20);
        if (communicator.rank() != 0) return;
        CHECK(best_in(dir / "run").step == training.trainer->progress().best.step);
        CHECK(best_in(dir / "run").manifest->rollbacks.size() == 1);
      });
    }
}

TEST_CASE("a best checkpoint from before the step that a run goes back to stays") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = validated_job(dir.str("run"));
  job.trainer.save_interval = 5;
  job.trainer.eval_interval = 4;
  job.trainer.on_nonfinite = "rollback 2";
  // So the loss of step 8 is not lower than that of step 4.
  job.learning_rate_scheduler.learning_rate = 0;
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator);
  advance(training, 8);
  break_next_step(training);
  advance_one(training);
  REQUIRE(training.trainer->progress().step == 5);
  CHECK(best_in(dir / "run").step == 4);
  CHECK(training.trainer->progress().best.step == 4);
  CHECK(training.trainer->progress().best.loss == recorded_loss(best_in(dir / "run")));
}

TEST_CASE("a rollback that was cut short leaves no best checkpoint to the next start") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = validated_job(dir.str("run"));
  job.trainer.train_iterations = 30;
  train_to_end(job);
  REQUIRE(best_in(dir / "run").step == 30);
  const std::string lineage = find_latest(dir / "run")->entry->manifest->lineage;
  REQUIRE(write_rollbacks(dir / "run", {lineage, {{25, 20, 0, "replicas differ"}}}));
  CHECK(std::isinf(best_at_start(job).loss));
  CHECK(kept_in(dir / "run").empty());
  CHECK(find_latest(dir / "run")->entry->step == 20);
}

TEST_CASE("a run whose loss is never below that of its initial weights keeps none, cut or not") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = validated_job(dir.str("run"));
  job.trainer.save_interval = job.trainer.eval_interval = 40;
  for (const std::int64_t steps : {40, 80}) {
    job.trainer.train_iterations = steps;
    const auto communicator = make_single_communicator();
    TinyTraining training(job, *communicator, DType::f32, 1,
                          std::make_unique<MisleadingSource>(job.model.vocab_size));
    REQUIRE(training.trainer->run());
    CHECK(training.trainer->progress().best.step == 0);
    CHECK(training.trainer->evaluate()->loss > training.trainer->progress().best.loss);
    CHECK(kept_in(dir / "run").empty());
  }
}

TEST_CASE("a validation of other samples is not compared with those before, and the log says so") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = validated_job(dir.str("run"));
  const auto start = [&] {  // returns the best validation, and the number of notes about it
    EventListener listener(dir.str("socket"));
    EventSink events = listener.connect();
    const auto communicator = make_single_communicator();
    RankContext rank;
    rank.compute = compute_device();
    ProgressionSource samples(job.model.vocab_size), validation(job.model.vocab_size);
    Trainer trainer(job, config::resolve_batch(job.topology, 1).plan, rank, *communicator, events,
                    samples, {{"validation", &validation}}, cpu_facts(), DType::f32, "test-build");
    const auto started = trainer.start();
    REQUIRE_MESSAGE(started, (started ? "" : started.error().message));
    std::int64_t notes = 0;
    for (const nlohmann::json& event : listener.events("note"))
      notes += event["text"].get<std::string>().find("counts no more") != std::string::npos ? 1 : 0;
    fs::remove(dir / "socket");
    return std::pair(trainer.progress().best, notes);
  };
  train_to_end(job);
  const BestValidation lowest = start().first;
  CHECK(lowest.step == 20);
  CHECK(start().second == 0);
  for (const auto change : {+[](config::JobConfig& other) { other.trainer.eval_samples = 8; },
                            +[](config::JobConfig& other) { other.model.sequence_length = 17; }}) {
    config::JobConfig changed = job;
    change(changed);
    std::swap(job, changed);
    const auto [best, notes] = start();
    CHECK(std::isinf(best.loss));
    CHECK(best.measure != lowest.measure);
    CHECK(notes == 1);
    std::swap(job, changed);
  }
  CHECK(start().first == lowest);  // nothing was saved in between

  job.trainer.eval_samples = 8;
  job.trainer.train_iterations = 30;
  job.learning_rate_scheduler.learning_rate = 1e-7;
  train_to_end(job);
  CHECK(best_in(dir / "run").step == 30);  // the first validation of these samples
  CHECK(start().first.step == 30);
  CHECK(start().second == 0);
}
