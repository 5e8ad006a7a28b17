// Tests of training mixtures of experts: the same invariants as for dense models, and the balancing
// bias.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "tests/support/temp_dir.h"
#include "tests/support/tiny_mixture.h"
#include "trainer/parallel/thread_ranks.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

const std::vector<std::string> kFamilies = {"mixtral", "qwen3-moe", "deepseek-v3"};

/// Everything that steps report, and the biases after the last one.
struct Course {
  std::vector<double> losses, balance, mtp, dropped;
  std::vector<float> biases;
  bool operator==(const Course&) const = default;
};

std::vector<float> biases_of(ParameterStore& store) {
  std::vector<float> biases;
  for (const Parameter* bias : router_biases(store)) {
    const std::vector<float> values = host_values(store, bias->weight());
    biases.insert(biases.end(), values.begin(), values.end());
  }
  return biases;
}

void take_steps(TinyTraining& training, int steps, Course& course) {
  for (int i = 0; i < steps; ++i) {
    const auto report = training.trainer->step();
    REQUIRE(report);
    course.losses.push_back(report->loss);
    course.balance.push_back(report->balance_loss.value());
    course.mtp.push_back(report->mtp_loss.value());
    if (report->dropped_choices) course.dropped.push_back(*report->dropped_choices);
  }
  course.biases = biases_of(training.trainer->store());
}

Course course_of(const config::JobConfig& job, int steps, int ranks = 1, int threads = 1) {
  std::mutex mutex;
  Course course;
  run_thread_ranks(ranks, [&](Communicator& communicator) {
    TinyTraining training(job, communicator, DType::f32, threads);
    Course mine;
    take_steps(training, steps, mine);
    const std::lock_guard lock(mutex);
    if (communicator.rank() == 0) course = mine;
  });
  return course;
}

void check_all_close(const std::vector<double>& a, const std::vector<double>& b, double relative) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(a[i] - b[i]) <= relative * std::abs(a[i]));
  }
}

}  // namespace

TEST_CASE("mixtures of experts learn a progression") {
  for (const std::string& family : kFamilies) {
    CAPTURE(family);
    const Course course = course_of(mixture_job(family), 60);
    CHECK(course.losses.front() == doctest::Approx(std::log(50.0)).epsilon(0.1));
    CHECK(course.losses.back() < 0.5 * course.losses.front());
    // The coefficient is 0.01 and an even load costs 1. deepseek-v3 adds up two mixtures, one of
    // which is that of multi-token prediction. Mixtral counts k assignments per token.
    CHECK(course.balance.front() == doctest::Approx(0.02).epsilon(0.2));
    if (family == "deepseek-v3") {
      CHECK(course.mtp.front() == doctest::Approx(0.3 * std::log(50.0) * 18 / 19).epsilon(0.1));
      CHECK(course.mtp.back() < 0.8 * course.mtp.front());
    }
  }
}

TEST_CASE("recomputed mixtures give the same bits, and count no token twice") {
  for (const std::string& family : kFamilies) {
    CAPTURE(family);
    config::JobConfig job = mixture_job(family);
    const Course plain = course_of(job, 10);
    job.topology.activation_checkpointing_type = "every_layer";
    CHECK(course_of(job, 10) == plain);
  }
}

TEST_CASE("mixtures have the same bits twice and on two threads where products have") {
  for (const std::string& family : kFamilies) {
    CAPTURE(family);
    CHECK(course_of(mixture_job(family), 6) == course_of(mixture_job(family), 6));
    CHECK(course_of(mixture_job(family), 6, 1, 2) == course_of(mixture_job(family), 6, 1, 2));
  }
}

TEST_CASE("data parallel mixtures equal one rank, with the same biases") {
  for (const std::string& family : kFamilies) {
    CAPTURE(family);
    const Course one = course_of(mixture_job(family), 20);
    for (const int ranks : {2, 4}) {
      CAPTURE(ranks);
      const Course several = course_of(mixture_job(family), 20, ranks);
      check_all_close(one.losses, several.losses, 1e-5);
      check_all_close(one.balance, several.balance, 1e-5);
      CHECK(one.biases == several.biases);
    }
  }
}

TEST_CASE("accumulation equals one large micro-batch, with the same biases") {
  config::JobConfig job = mixture_job("deepseek-v3");
  const Course pieces = course_of(job, 20);
  job.topology.micro_batch_size = 8;
  const Course whole = course_of(job, 20);
  check_all_close(pieces.losses, whole.losses, 1e-5);
  check_all_close(pieces.balance, whole.balance, 1e-5);
  check_all_close(pieces.mtp, whole.mtp, 1e-5);
  CHECK(pieces.biases == whole.biases);
}

namespace {

config::JobConfig limited_job(const std::string& family, double factor = 1.0) {
  config::JobConfig job = mixture_job(family);
  job.model.moe.capacity_factor = factor;
  return job;
}

}  // namespace

TEST_CASE("experts with a capacity drop the same choices recomputed, accumulated and in replicas") {
  for (const std::string& family : kFamilies) {
    CAPTURE(family);
    config::JobConfig job = limited_job(family);
    const Course one = course_of(job, 8);
    for (const double dropped : one.dropped) {
      CHECK(dropped > 0.0);
      CHECK(dropped < 0.5);
    }
    CHECK(one.losses != course_of(mixture_job(family), 8).losses);
    for (const int ranks : {2, 4}) {
      const Course several = course_of(job, 8, ranks);
      check_all_close(one.losses, several.losses, 1e-5);
      CHECK(one.dropped == several.dropped);
      CHECK(one.biases == several.biases);
    }
    job.topology.activation_checkpointing_type = "every_layer";
    CHECK(course_of(job, 8) == one);
    job.model.moe.aux_loss_coeff = 0.0;  // this loss is computed per micro-batch
    const Course pieces = course_of(job, 8);
    job.topology.micro_batch_size = 8;
    const Course whole = course_of(job, 8);
    check_all_close(pieces.losses, whole.losses, 1e-5);
    CHECK(pieces.dropped == whole.dropped);
  }
}

TEST_CASE("experts with room for every choice train with the bits of those without a capacity") {
  for (const std::string& family : kFamilies) {
    CAPTURE(family);
    const Course limited = course_of(limited_job(family, 3.0), 4);  // 3 * 2 / 6 experts: all rows
    CHECK(limited.dropped == std::vector<double>(4, 0.0));
    Course without = course_of(mixture_job(family), 4);
    CHECK(without.dropped.empty());
    without.dropped = limited.dropped;
    CHECK(limited == without);
  }
}

TEST_CASE(
    "a capacity holds in training alone, and drops what the chosen experts have no room for") {
  const auto communicator = make_single_communicator();
  for (const std::string& family : kFamilies) {
    CAPTURE(family);
    const auto losses_of = [&](const config::JobConfig& job) {
      TinyTraining training(job, *communicator);
      const TinyTraining::Batch batch = training.first_rows(8);
      std::vector<double> losses;
      for (const bool trains : {true, false}) {
        ForwardContext context;
        context.training = trains;
        Graph graph(training.trainer->context(),
                    trains ? Graph::Mode::record : Graph::Mode::inference);
        const Tensor loss =
            training.trainer->model().loss(graph, batch.tokens, batch.targets, 1.0f, context);
        losses.push_back(ops::copy_to_host<double>(training.trainer->context(), loss)[0]);
        if (!trains) CHECK_FALSE(context.routers.dropped.defined());
      }
      return losses;
    };
    const std::vector<double> all = losses_of(mixture_job(family));
    const std::vector<double> limited = losses_of(limited_job(family, 0.5));
    CHECK(limited[0] != all[0]);
    CHECK(limited[1] == all[1]);
  }
  // The capacity is 0.25 of an even load of 20 * 2 / 6 choices: each expert keeps two choices per
  // sequence, at most 12 of 40 in all.
  config::JobConfig job = limited_job("mixtral", 0.25);
  job.model.sequence_length = 20;
  const double dropped = course_of(job, 1).dropped.at(0);
  CHECK(dropped >= 1.0 - 12.0 / 40.0);
  CHECK(dropped < 0.9);
}

TEST_CASE(
    "the bias moves by the rate each step, and is left alone without one or when it is frozen") {
  config::JobConfig job = mixture_job("deepseek-v3");
  const Course moved = course_of(job, 3);
  REQUIRE(moved.biases.size() == 12);
  for (const float bias : moved.biases)  // each of three steps moves it up, down or not at all
    CHECK(std::abs(bias / 0.01f - std::round(bias / 0.01f)) < 1e-4f);
  CHECK(std::ranges::any_of(moved.biases, [](float bias) { return bias != 0.0f; }));
  const std::vector<float> still(12, 0.0f);
  config::JobConfig frozen = job;
  frozen.optimizer.freeze = {"layers.*.mlp.router.*"};
  CHECK(course_of(frozen, 3).biases == still);
  config::JobConfig low_rank = job;
  low_rank.lora.rank = 2;
  CHECK(course_of(low_rank, 3).biases == still);
  job.model.moe.bias_update_rate = 0.0;
  CHECK(course_of(job, 3).biases == still);
}

TEST_CASE("the bias evens out the load of experts") {
  // A router that starts far from even, and no loss that would make it even.
  const auto spread = [](double rate) {
    config::JobConfig job = mixture_job("deepseek-v3");
    job.model.moe.seq_aux_loss_coeff = 0.0;
    job.model.moe.bias_update_rate = rate;
    job.model.moe.num_groups = job.model.moe.group_topk = 1;
    job.learning_rate_scheduler.learning_rate = 1e-5;
    const auto communicator = make_single_communicator();
    TinyTraining training(job, *communicator);
    ParameterStore& store = training.trainer->store();
    const Parameter* router = store.find("layers.1.mlp.router.weight");
    for (std::int64_t i = 0; i < router->elements(); ++i)
      host_view(store, store.master())[static_cast<std::size_t>(router->offset() + i)] *= 12.0f;
    store.weights_changed();
    training.losses(60);
    // The load of the same samples with the current biases.
    ForwardContext context;
    context.training = true;
    const TinyTraining::Batch batch = training.first_rows(8);
    Graph graph(training.trainer->context(), Graph::Mode::record);
    training.trainer->model().loss(graph, batch.tokens, batch.targets, 1.0f, context);
    const auto counts =
        ops::copy_to_host<double>(training.trainer->context(), context.routers.counts.at(0));
    CHECK(std::accumulate(counts.begin(), counts.end(), 0.0) == 8 * 19 * 2);
    return *std::ranges::max_element(counts) / (8 * 19 * 2 / 6.0);
  };
  const double without = spread(0.0), with = spread(0.01);
  CHECK(without > 1.25);
  CHECK(with - 1.0 < 0.7 * (without - 1.0));
}

TEST_CASE("a mixture resumes with the same bits, its bias included") {
  for (const std::string& family : kFamilies) {
    CAPTURE(family);
    const sortie::test::ScopedTempDir folder;
    config::JobConfig job = mixture_job(family);
    job.trainer.train_iterations = 8;
    const Course whole = course_of(job, 8);
    const auto communicator = make_single_communicator();
    Course course;
    for (int half = 0; half < 2; ++half) {
      TinyTraining training(job, *communicator);
      CHECK(training.trainer->progress().step == 4 * half);
      if (half == 1) CHECK(biases_of(training.trainer->store()) == course.biases);
      take_steps(training, 4, course);
      job.trainer.load_dir = folder.path().string();
      config::JobConfig saving = training.job;
      saving.trainer.save_dir = folder.path().string();
      const BitFacts facts;
      Checkpointer saver(saving, facts, training.trainer->store(), training.trainer->layout(),
                         training.trainer->context());
      saver.set_claimant({"test"});
      REQUIRE(saver.save(training.trainer->progress()));
    }
    CHECK(course == whole);
  }
}

TEST_CASE("a skipped step leaves the biases alone") {
  const auto communicator = make_single_communicator();
  TinyTraining training(mixture_job("deepseek-v3"), *communicator);
  training.losses(2);
  ParameterStore& store = training.trainer->store();
  const std::vector<float> before = biases_of(store);
  host_view(store, store.gradients())[3] = std::nanf("");
  const auto report = training.trainer->step();
  REQUIRE(report);
  CHECK(report->skipped);
  CHECK(biases_of(store) == before);
}

TEST_CASE("a mixture in its steady state allocates nothing") {
  const auto communicator = make_single_communicator();
  TinyTraining training(mixture_job("deepseek-v3"), *communicator);
  training.losses(12);
  const std::size_t before = training.trainer->context().allocator().system_allocations();
  training.losses(8);
  CHECK(training.trainer->context().allocator().system_allocations() == before);
}
