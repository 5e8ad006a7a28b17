// Tests that a run that was interrupted and resumed has the bits of one that was not.
#include <doctest/doctest.h>

#include <filesystem>
#include <functional>

#include "tests/support/temp_dir.h"
#include "tests/support/tiny_training.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

constexpr int kSteps = 12, kCut = 5;

struct SavedCourse {
  std::vector<double> losses;
  std::vector<float> weights;
  bool operator==(const SavedCourse&) const = default;
};

SavedCourse finish(TinyTraining& training, int steps) {
  SavedCourse course{training.losses(steps), {}};
  course.weights = host_values(training.trainer->store(), training.trainer->store().master());
  return course;
}

config::JobConfig job_of(const std::function<void(config::JobConfig&)>& change) {
  config::JobConfig job = tiny_job();
  job.trainer.train_iterations = kSteps;
  change(job);
  return job;
}

void check_cut_in_two(const config::JobConfig& job) {
  const auto communicator = make_single_communicator();
  TinyTraining whole(job, *communicator);
  SavedCourse uninterrupted = finish(whole, kSteps);
  uninterrupted.losses.erase(uninterrupted.losses.begin(), uninterrupted.losses.begin() + kCut);

  const sortie::test::ScopedTempDir dir;
  config::JobConfig first = job;
  first.trainer.save_dir = dir.str("checkpoints");
  // Both halves use the schedule of the whole run.
  if (first.learning_rate_scheduler.learning_rate_decay_iters == 0)
    first.learning_rate_scheduler.learning_rate_decay_iters = kSteps;
  first.trainer.train_iterations = kCut;
  {
    TinyTraining before(first, *communicator);
    REQUIRE(before.trainer->run());
  }

  config::JobConfig second = first;
  second.trainer.train_iterations = kSteps;
  TinyTraining after(second, *communicator);
  REQUIRE(after.trainer->progress().step == kCut);
  CHECK(finish(after, kSteps - kCut) == uninterrupted);
}

}  // namespace

TEST_CASE("save and resume give the same bits with every schedule") {
  for (const char* style : {"constant", "linear", "cosine", "warmup-stable-decay"}) {
    CAPTURE(style);
    check_cut_in_two(job_of([&](config::JobConfig& job) {
      job.learning_rate_scheduler.learning_rate_decay_style = style;
      job.learning_rate_scheduler.learning_rate_warmup_steps = 3;
      job.learning_rate_scheduler.wsd_decay_steps = 6;
    }));
  }
}

TEST_CASE("save and resume give the same bits in the middle of a batch ramp-up") {
  const config::JobConfig job = job_of([](config::JobConfig& ramp) {
    ramp.topology.batch_rampup_start = 2;
    ramp.topology.batch_rampup_increment = 2;
    ramp.topology.batch_rampup_samples = 36;  // 12 samples each in batches of 2, 4 and 6
  });
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator);
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < 12; ++i) sizes.push_back(training.trainer->step()->samples);
  CHECK(sizes == std::vector<std::int64_t>{2, 2, 2, 2, 2, 2, 4, 4, 4, 6, 6, 8});
  CHECK(training.trainer->progress().consumed_samples == 44);
  check_cut_in_two(job);
}

TEST_CASE("save and resume give the same bits while outliers are watched") {
  check_cut_in_two(job_of([](config::JobConfig& job) {
    job.optimizer.skip_gradient_norm_zscore = 0.5;  // some steps of a healthy run exceed this
    job.optimizer.skip_loss_zscore = 3;
    job.optimizer.outlier_window = 4;
  }));
}

TEST_CASE("a run that starts from weights has them, and nothing else of the other run") {
  const auto communicator = make_single_communicator();
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = tiny_job();
  job.trainer.train_iterations = 4;
  job.trainer.save_dir = dir.str("old");
  TinyTraining old(job, *communicator);
  REQUIRE(old.trainer->run());

  config::JobConfig fine = job;
  fine.trainer.save_dir = dir.str("new");
  fine.trainer.load_weights_from = dir.str("old");
  TinyTraining fresh(fine, *communicator);
  CHECK(fresh.trainer->progress().step == 0);
  CHECK(fresh.trainer->progress().consumed_samples == 0);
  CHECK(fresh.trainer->progress().updates == 0);
  ParameterStore& from = old.trainer->store();
  ParameterStore& to = fresh.trainer->store();
  CHECK(host_values(from, from.master()) == host_values(to, to.master()));
  CHECK(std::ranges::all_of(host_values(to, to.moment1()),
                            [](float value) { return value == 0.0f; }));
  REQUIRE(fresh.trainer->run());
  const std::vector<float> trained = host_values(to, to.master());
  fresh.trainer.reset();  // and with it the lock of its folder

  // Its own checkpoint has precedence over the other's weights.
  TinyTraining again(fine, *communicator);
  CHECK(again.trainer->progress().step == 4);
  CHECK(trained == host_values(again.trainer->store(), again.trainer->store().master()));

  fine.trainer.save_dir.clear();
  fine.trainer.load_weights_from = dir.str("nowhere");
  CHECK(start_error(fine).starts_with("trainer.load_weights_from " + dir.str("nowhere")));
}

TEST_CASE("a checkpoint of before there were layouts and devices is gone on from") {
  // Written by the trainer of 2026-11-22, in f32 with AVX-512: three of these steps. The losses are
  // those of its next four steps. The vocabulary of 50 has 64 rows there.
  const sortie::test::ScopedTempDir dir;
  std::filesystem::copy(std::filesystem::path(SORTIE_TEST_DATA) / "checkpoints/before_layouts",
                        dir.str("checkpoints"), std::filesystem::copy_options::recursive);
  config::JobConfig job = tiny_job();
  job.model.hidden_size = 16;
  job.model.num_layers = 1;
  job.model.num_attention_heads = 2;
  job.model.attention_num_kv_heads = 1;
  job.model.ffn_hidden_size = 32;
  job.trainer.train_iterations = kSteps;
  job.trainer.save_dir = dir.str("checkpoints");
  job.learning_rate_scheduler.learning_rate_decay_iters = kSteps;
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator);
  REQUIRE(training.trainer->progress().step == 3);
  CHECK(training.trainer->progress().consumed_samples == 24);
  const std::vector<double> losses = training.losses(4);
  const double then[] = {3.619489476, 3.547995469, 3.522501179, 3.435112101};
  for (std::size_t i = 0; i < losses.size(); ++i)
    CHECK(losses[i] == doctest::Approx(then[i]).epsilon(1e-4));
}
