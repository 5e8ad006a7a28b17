// Tests that a GPU trains as the CPU does, and that a run can move from one to the other.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "common/config/architectures.h"
#include "tests/support/emulated.h"
#include "tests/support/every_case.h"
#include "tests/support/state_values.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_mixture.h"
#include "trainer/models/families.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

bool has_experts(const std::string& architecture) {
  config::ModelConfig model;
  model.architecture = architecture;
  return config::architecture_of(model).mixture;
}

config::JobConfig gpu_job(const std::string& architecture) {
  config::JobConfig job = family_job(architecture);
  job.model.sequence_length = 16;
  job.topology.global_batch_size = 4;
  return job;
}

std::vector<double> gpu_losses(const config::JobConfig& job, int steps, DType precision) {
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator, precision);
  return training.losses(steps);
}

void check_near(const std::vector<double>& a, const std::vector<double>& b, double relative) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(a[i] - b[i]) <= relative * std::abs(a[i]));
  }
}

config::JobConfig gpu_saving_job(const std::string& save_dir, std::int64_t steps) {
  config::JobConfig job = gpu_job("llama");
  job.trainer.save_dir = save_dir;
  job.trainer.train_iterations = steps;
  job.learning_rate_scheduler.learning_rate_decay_iters = 20;
  return job;
}

/// Trains with DeMo. A block takes the emulation about as long as a small one would: few large
/// ones.
void use_demo(config::JobConfig& job) {
  job.optimizer.name = "demo";
  job.optimizer.chunk = 64;
  job.optimizer.top_k = 64;
  job.optimizer.momentum = 0.95;
}

/// Returns how often the host has waited for the emulated GPU.
std::uint64_t gpu_waits() {
  return emulated_count("sortie_emulated_waits");
}

}  // namespace

TEST_CASE("on a GPU: checkpoints in memory are copied to pinned memory" *
          doctest::skip(!gpu_is_emulated())) {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = gpu_saving_job(dir / "save", 6);
  job.trainer.memory_checkpoint_interval = 2;
  RankContext rank;
  rank.run_id = "run-a";
  rank.attempt = 1;
  rank.memory_folder = dir / "memory";
  std::filesystem::create_directories(rank.memory_folder);
  const auto communicator = make_single_communicator();
  const std::uint64_t before = emulated_count("sortie_emulated_slow_reads");
  {
    TinyTraining training(job, *communicator, DType::f32, 1, nullptr, rank);
    REQUIRE(training.trainer->run_steps());
  }
  CHECK(std::filesystem::exists(dir / "memory/share-00000-of-00001.a.seal"));
  CHECK(emulated_count("sortie_emulated_slow_reads") == before);
}

TEST_CASE("on a GPU: the host waits for no step before it has given the next" *
          doctest::skip(!gpu_is_emulated())) {
  struct Row {
    const char* architecture;
    bool demo = false;
  };
  for (const Row& row :
       {Row{"llama"}, Row{"gpt2"}, Row{"qwen3-moe"}, Row{"deepseek-v3"}, Row{"llama", true}}) {
    CAPTURE(std::string(row.architecture));
    CAPTURE(row.demo);
    const auto waits_of = [&](std::int64_t steps) {
      config::JobConfig job = gpu_job(row.architecture);
      if (row.demo) use_demo(job);
      job.trainer.train_iterations = steps;
      const auto communicator = make_single_communicator();
      TinyTraining training(job, *communicator, DType::f32);
      const std::uint64_t before = gpu_waits();
      REQUIRE(training.trainer->run_steps());
      CHECK(training.trainer->progress().step == steps);
      return gpu_waits() - before;
    };
    // The host waits only for the last step, and for memory in the first one.
    CHECK(waits_of(9) == waits_of(4));
  }
}

TEST_CASE("on a GPU: every family's losses are those of the CPU" *
          doctest::skip(no_gpu_is_tested())) {
  for (const Family& family : families()) {
    const std::string name(family.name);
    CAPTURE(name);
    const int steps = sortie::test::every_case() ? 10 : 3;
    // One micro-batch, and two, the second of which adds to the gradients of the first.
    for (const std::int64_t micro_batch : {4, 2}) {
      if (micro_batch == 2 && !sortie::test::every_case() && name != "gpt2") continue;
      CAPTURE(micro_batch);
      config::JobConfig job = gpu_job(name);
      job.topology.micro_batch_size = micro_batch;
      const std::vector<double> here = gpu_losses(job, steps, DType::f32);
      const OnDevice cpu({});
      check_near(gpu_losses(job, steps, DType::f32), here, has_experts(name) ? 1e-4 : 1e-5);
    }
  }
}

TEST_CASE("on a GPU: bf16 follows f32, and a rerun has its bits" *
          doctest::skip(no_gpu_is_tested())) {
  const config::JobConfig job = gpu_job("llama");
  const std::vector<double> narrow = gpu_losses(job, 5, DType::bf16);
  check_near(gpu_losses(job, 5, DType::f32), narrow, 3e-2);
  CHECK(gpu_losses(job, 5, DType::bf16) == narrow);
}

TEST_CASE("on a GPU: DeMo trains as on the CPU, and a rerun has its bits" *
          doctest::skip(no_gpu_is_tested())) {
  config::JobConfig job = gpu_job("llama");
  use_demo(job);
  const int steps = sortie::test::every_case() ? 10 : 4;
  const std::vector<double> here = gpu_losses(job, steps, DType::f32);
  CHECK(here.back() < here.front() - 0.01);
  CHECK(gpu_losses(job, steps, DType::f32) == here);
  const OnDevice cpu({});
  // A gradient that differs in its last bits may change the sign of a step that is close to 0.
  check_near(gpu_losses(job, steps, DType::f32), here, 1e-3);
}

TEST_CASE("on a GPU: a run is saved, and goes on on the CPU and back" *
          doctest::skip(no_gpu_is_tested())) {
  const auto communicator = make_single_communicator();
  std::string moments = "f32";
  bool demo = false;
  double limit = 1e-5;
  SUBCASE("moments in f32") {}
  SUBCASE("moments in bf16") {
    moments = "bf16";
    limit = 1e-4;  // a difference in the last bit may change the direction of rounding
  }
  SUBCASE("DeMo's momentum") {
    demo = true;
    limit = 1e-3;  // and the sign of a step
  }
  const sortie::test::ScopedTempDir dir;
  const auto job_to = [&](const std::string& save_dir, std::int64_t steps) {
    config::JobConfig job = gpu_saving_job(save_dir, steps);
    job.optimizer.moments = moments;
    if (demo) use_demo(job);
    return job;
  };
  const auto train_to = [&](std::int64_t steps, Device on, std::vector<double>& losses) {
    const OnDevice chosen(on);
    const config::JobConfig job = job_to(dir.str("checkpoints"), steps);
    TinyTraining training(job, *communicator);
    const std::vector<float> loaded = state_values(training.trainer->store());
    while (training.trainer->progress().step < steps) {
      const auto report = training.trainer->step();
      REQUIRE(report);
      losses.push_back(report->loss);
      REQUIRE(training.trainer->after_step(*report));
    }
    return std::pair(loaded, state_values(training.trainer->store()));
  };
  std::vector<double> mixed;
  const auto first = train_to(3, device(), mixed);
  const auto second = train_to(6, {}, mixed);
  const auto third = train_to(9, device(), mixed);
  CHECK(second.first == first.second);  // the bits that were saved
  CHECK(third.first == second.second);
  const OnDevice cpu({});
  check_near(gpu_losses(job_to("", 20), 9, DType::f32), mixed, limit);
}
