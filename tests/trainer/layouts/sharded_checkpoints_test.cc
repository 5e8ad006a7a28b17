// Tests of checkpoints of sharded optimizers: each rank saves and loads its own part, and what is
// loaded does not depend on the layout that saved it.
#include <doctest/doctest.h>

#include "tests/support/bf16.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/layouts/layout_runs.h"
#include "trainer/checkpoint/find.h"

namespace sortie::trainer::test {
namespace {

namespace fs = std::filesystem;

struct Cut {
  int ranks = 1;
  bool sharded = true;
  bool full = false;  // shards weights and gradients, too
};

config::JobConfig job_for(const config::JobConfig& job, Cut cut) {
  config::JobConfig changed = job;
  changed.topology.parameter_sharding = cut.full ? "full" : cut.sharded ? "optimizer" : "none";
  return changed;
}

/// Returns a job for 1, 2, 3 and 4 ranks. Its bits do not depend on the gradient norm.
config::JobConfig saved_job_in(const std::string& save_dir, int steps) {
  config::JobConfig job = tiny_job();
  job.topology.global_batch_size = 24;
  job.optimizer.gradient_clipping = 0;
  job.learning_rate_scheduler.learning_rate_decay_iters = 12;
  job.trainer.train_iterations = steps;
  job.trainer.save_dir = save_dir;
  return job;
}

struct WholeState {
  WholeTensors model, first, second;
  std::int64_t step = 0, samples = 0;
  bool operator==(const WholeState&) const = default;
};

/// Starts from the newest checkpoint, or from the seed. If `trains`, trains to the last step of the
/// job. Returns the state of all ranks.
WholeState state_of(const config::JobConfig& job, Cut cut, bool trains,
                    DType precision = DType::f32) {
  Assembled model, first, second;
  WholeState state;
  std::mutex mutex;
  run_thread_ranks(cut.ranks, [&](Communicator& world) {
    TinyTraining training(job_for(job, cut), world, precision);
    if (trains) {
      const auto ran = training.trainer->run();
      SORTIE_CHECK(ran.has_value(), "{}", ran ? "" : ran.error().message);
    }
    ParameterStore& store = training.trainer->store();
    store.await_values();  // before locking: this needs the other ranks
    const std::lock_guard lock(mutex);
    model.add(world.rank(), store, "model.");
    first.add(world.rank(), store, "optimizer.m.");
    second.add(world.rank(), store, "optimizer.v.");
    state.step = training.trainer->progress().step;
    state.samples = training.trainer->progress().consumed_samples;
  });
  for (const Assembled* part : {&model, &first, &second}) CHECK(part->wrong() == "");
  state.model = model.tensors();
  state.first = first.tensors();
  state.second = second.tensors();
  for (const auto& [name, values] : state.model) {
    CAPTURE(name);
    CHECK(std::ranges::none_of(values, [](float value) { return std::isnan(value); }));
  }
  return state;
}

TEST_CASE("what any cut of the optimizer saves any other one loads, to the bit") {
  const DType narrow = narrow_type();
  const std::pair<Cut, Cut> pairs[] = {
      {{2, true}, {2, false}},       {{2, false}, {2, true}},       {{4, true}, {2, true}},
      {{3, true}, {4, true}},        {{2, true}, {1, false}},       {{1, false}, {3, true}},
      {{2, true, true}, {2, false}}, {{1, false}, {3, true, true}}, {{4, true, true}, {2, true}},
      {{2, true}, {4, true, true}},
  };
  int number = 0;
  for (const auto& [from, to] : pairs) {
    CAPTURE(from.ranks);
    CAPTURE(to.ranks);
    CAPTURE(from.sharded);
    const DType precision = number++ % 2 == 0 ? narrow : DType::f32;
    const sortie::test::ScopedTempDir dir;
    const config::JobConfig job = saved_job_in(dir.str("run"), 3);
    const WholeState saved = state_of(job, from, /*trains=*/true, precision);
    CHECK(saved.step == 3);
    CHECK(state_of(job, to, /*trains=*/false, precision) == saved);
  }
}

TEST_CASE("a run that is cut in two, sharded or not, goes on with the bits of one that is not") {
  const DType narrow = narrow_type();
  const WholeState whole = state_of(saved_job_in("", 8), {2, false}, true, narrow);
  for (const bool first : {true, false})
    for (const bool second : {true, false}) {
      if (!first && !second) continue;
      CAPTURE(first);
      CAPTURE(second);
      const sortie::test::ScopedTempDir dir;
      (void)state_of(saved_job_in(dir.str("run"), 5), {2, first}, true, narrow);
      CHECK(state_of(saved_job_in(dir.str("run"), 8), {2, second}, true, narrow) == whole);
    }
}

TEST_CASE("a fully sharded run that is cut in two has the bits of one that is not") {
  const DType narrow = narrow_type();
  const Cut full{.ranks = 3, .full = true};
  const WholeState whole = state_of(saved_job_in("", 6), full, true, narrow);
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = saved_job_in(dir.str("run"), 4);
  job.trainer.save_interval = 3;  // saves in the background
  (void)state_of(job, full, true, narrow);
  fs::remove_all(dir / "run/step-00000004");
  job.trainer.train_iterations = 6;
  CHECK(state_of(job, full, true, narrow) == whole);
}

TEST_CASE("shares are saved beside training, as they were when the save began") {
  const WholeState whole = state_of(saved_job_in("", 7), {3, true}, true);
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = saved_job_in(dir.str("run"), 7);
  job.trainer.save_interval = 3;
  job.trainer.keep_last = 0;
  CHECK(state_of(job, {3, true}, true) == whole);
  fs::remove_all(dir / "run/step-00000007");
  fs::remove_all(dir / "run/step-00000006");
  REQUIRE(fs::exists(dir / "run/step-00000003/COMMIT"));
  CHECK(state_of(job, {3, true}, true) == whole);
}

TEST_CASE("low-rank updates and frozen weights are saved once, whole and by shares") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = saved_job_in(dir.str("run"), 3);
  job.lora.rank = 4;
  job.lora.modules = {"*.attention.*"};
  const WholeState saved = state_of(job, {3, true}, true);
  CHECK(saved.first.size() < saved.model.size());
  CHECK(state_of(job, {2, false}, false) == saved);
  CHECK(state_of(job, {2, true, true}, false) == saved);
  CHECK(check_checkpoint(dir / "run/step-00000003", CheckDepth::hashes));
}

TEST_CASE("sharded replicas go back to a checkpoint and take the same course again") {
  const WholeState whole = state_of(saved_job_in("", 6), {3, true}, true);
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = job_for(saved_job_in(dir.str("run"), 6), {3, true});
  job.trainer.save_interval = 2;
  job.trainer.replica_check_interval = 1;
  job.trainer.on_replica_mismatch = "rollback 1";
  Assembled model, first;
  std::mutex mutex;
  run_thread_ranks(3, [&](Communicator& world) {
    TinyTraining training(job, world);
    bool broken = false;
    while (training.trainer->progress().step < 6) {
      const auto report = training.trainer->step();
      SORTIE_CHECK(report.has_value(), "{}", report ? "" : report.error().message);
      ParameterStore& store = training.trainer->store();
      if (report->step == 4 && !std::exchange(broken, true) && world.rank() == 1) {
        store.await_values();
        host_view(store, store.master())[static_cast<std::size_t>(store.own_share(0).end)] += 1.0f;
      }
      const auto after = training.trainer->after_step(*report);
      SORTIE_CHECK(after.has_value(), "{}", after ? "" : after.error().message);
    }
    training.trainer->store().await_values();
    const std::lock_guard lock(mutex);
    model.add(world.rank(), training.trainer->store(), "model.");
    first.add(world.rank(), training.trainer->store(), "optimizer.m.");
  });
  CHECK(model.tensors() == whole.model);
  CHECK(first.tensors() == whole.first);
  CHECK(fs::exists(dir / "run/rollbacks.json"));
}

TEST_CASE("a rank whose peers are gone has not all of a sharded state, and saves nothing") {
  const sortie::test::ScopedTempDir dir;
  std::mutex mutex;
  int refused = 0;
  run_thread_ranks(3, [&](Communicator& world) {
    TinyTraining training(job_for(saved_job_in(dir.str("run"), 12), {3, true}), world);
    training.losses(2);
    world.barrier();
    if (world.rank() == 1) return;
    bool thrown = false;
    try {
      training.losses(1);
    } catch (const CommunicatorError&) {
      thrown = true;
    }
    const auto outcome = training.trainer->save_alone();
    const std::lock_guard lock(mutex);
    CHECK(thrown);
    REQUIRE(outcome);
    if (!*outcome) ++refused;
  });
  CHECK(refused == 2);
  CHECK_FALSE(fs::exists(dir / "run/step-00000002"));
}

}  // namespace
}  // namespace sortie::trainer::test
