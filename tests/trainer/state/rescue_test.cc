// Tests of the last save of ranks whose peer is gone.
#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>

#include "tests/support/temp_dir.h"
#include "tests/support/text.h"
#include "tests/support/tiny_training.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/parallel/thread_ranks.h"
#include "trainer/state/state_view.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;
using sortie::test::contains;

namespace {

config::JobConfig rescued_job(const std::string& save_dir) {
  config::JobConfig job = tiny_job();
  job.topology.global_batch_size = 12;
  job.trainer.save_dir = save_dir;
  job.trainer.train_iterations = 12;
  return job;
}

std::vector<float> weights_of(TinyTraining& training) {
  ParameterStore& store = training.trainer->store();
  return host_values(store, store.master());
}

}  // namespace

TEST_CASE(
    "when a rank is gone one of the others saves what all had, and the run goes on from there") {
  for (const int lost : {0, 1, 2}) {
    CAPTURE(lost);
    const sortie::test::ScopedTempDir dir;
    std::vector<float> whole;
    run_thread_ranks(3, [&](Communicator& communicator) {
      TinyTraining training(rescued_job(""), communicator);
      training.losses(12);
      if (communicator.rank() == 0) whole = weights_of(training);
    });
    std::mutex mutex;
    int saved = 0, errors = 0, refused = 0;
    run_thread_ranks(3, [&](Communicator& communicator) {
      TinyTraining training(rescued_job(dir.str("run")), communicator);
      training.losses(7);
      communicator.barrier();
      if (communicator.rank() == lost) return;
      // The other ranks fail while they wait in the next step. The state from before it counts
      // nevertheless.
      bool thrown = false;
      try {
        training.losses(1);
      } catch (const CommunicatorError&) {
        thrown = true;
      }
      const auto outcome = training.trainer->save_alone();
      const std::lock_guard lock(mutex);
      CHECK(thrown);
      if (!outcome)
        ++errors;
      else if (*outcome)
        ++saved;
      else
        ++refused;
    });
    CHECK(errors == 0);
    CHECK(saved == 1);
    CHECK(refused == 1);
    run_thread_ranks(3, [&](Communicator& communicator) {
      TinyTraining training(rescued_job(dir.str("run")), communicator);
      CHECK(training.trainer->progress().step == 7);
      training.losses(5);
      CHECK(weights_of(training) == whole);
    });
  }
}

TEST_CASE("a last save is not made where a later attempt has the folder, or the step is there") {
  const sortie::test::ScopedTempDir dir;
  const auto communicator = make_single_communicator();
  config::JobConfig job = rescued_job(dir.str("run"));
  TinyTraining training(job, *communicator);
  training.losses(3);
  const auto first = training.trainer->save_alone();
  REQUIRE_MESSAGE(first, (first ? "" : first.error().message));
  REQUIRE(*first);
  CHECK((*first)->path == dir / "run/step-00000003");
  const auto again = training.trainer->save_alone();
  REQUIRE(again);
  CHECK_FALSE(*again);
  training.losses(1);
  std::filesystem::remove(dir / "run/.lock");
  const auto fenced = training.trainer->save_alone();
  REQUIRE_FALSE(fenced);
  CHECK(contains(fenced.error().message, "this process must not commit there"));
  CHECK_FALSE(std::filesystem::exists(dir / "run/step-00000004"));
}
