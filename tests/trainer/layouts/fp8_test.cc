// Compares linear layers in FP8 on ranks that share a model with one rank.
#include "tests/support/every_case.h"
#include "tests/trainer/layouts/layout_runs.h"

namespace sortie::trainer::test {
namespace {

struct Fp8Layout {
  const char* name;
  std::function<void(config::TopologyConfig&)> change;
  bool always = false;  // runs without SORTIE_EVERY_CASE, too
};

config::JobConfig fp8_layout_job() {
  config::JobConfig job = tiny_job("llama");
  job.model.num_layers = 4;
  job.model.hidden_size = 64;
  job.model.ffn_hidden_size = 96;
  job.model.sequence_length = 32;
  job.topology.global_batch_size = 4;
  job.topology.micro_batch_size = 1;
  job.optimizer.eps = 1e-4;
  job.model.precision = "fp8";
  return job;
}

void check_fp8_near(const std::vector<double>& values, const std::vector<double>& expected,
                    double relative) {
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    CHECK(std::abs(values[i] - expected[i]) <= relative * std::abs(expected[i]));
}

}  // namespace

TEST_CASE("on a GPU: all ranks know the same largest values of delayed scaling" *
          doctest::skip(no_gpu_is_tested())) {
  config::JobConfig job = fp8_layout_job();
  job.model.fp8_scaling = "delayed";
  const LayoutRun alone = run_layout(job, 1, 3, DType::bf16);
  for (const bool tensor : {true, false}) {
    config::JobConfig shared = job;
    if (tensor) shared.topology.tensor_parallel_size = 2;
    std::vector<std::vector<float>> histories(2);
    run_thread_ranks(2, [&](Communicator& world) {
      TinyTraining training(shared, world, DType::bf16);
      const std::vector<double> losses = training.losses(3);
      check_fp8_near(losses, alone.losses, 0.03);
      histories[static_cast<std::size_t>(world.rank())] = ops::copy_to_host<float>(
          training.trainer->context(), training.trainer->store().fp8_history());
    });
    CHECK(!histories[0].empty());
    CHECK(histories[0][2] > 0.0f);
    CHECK(histories[0] == histories[1]);
  }
}

TEST_CASE("on a GPU: ranks that share a model out train in FP8 as one does" *
          doctest::skip(no_gpu_is_tested())) {
  const int steps = sortie::test::every_case() ? 6 : 2;
  const config::JobConfig job = fp8_layout_job();
  const LayoutRun alone = run_layout(job, 1, steps, DType::bf16);
  for (const Fp8Layout& way :
       {Fp8Layout{"shared layers",
                  [](auto& topology) {
                    topology.tensor_parallel_size = 2;
                    topology.sequence_parallel = true;
                  },
                  true},
        Fp8Layout{"shared layers, whole rows",
                  [](auto& topology) { topology.tensor_parallel_size = 2; }},
        Fp8Layout{"stages without a bubble",
                  [](auto& topology) {
                    topology.pipeline_parallel_size = 2;
                    topology.pipeline_schedule = "zero_bubble";
                  },
                  true},
        Fp8Layout{"stages", [](auto& topology) { topology.pipeline_parallel_size = 2; }},
        Fp8Layout{"replicas", [](auto&) {}},
        Fp8Layout{"a sharded optimizer",
                  [](auto& topology) { topology.parameter_sharding = "optimizer"; }},
        Fp8Layout{"full sharding", [](auto& topology) { topology.parameter_sharding = "full"; },
                  true},
        Fp8Layout{"shared sequences",
                  [](auto& topology) { topology.context_parallel_size = 2; }}}) {
    if (!way.always && !sortie::test::every_case()) continue;
    CAPTURE(std::string(way.name));
    config::JobConfig shared = job;
    way.change(shared.topology);
    const LayoutRun run = run_layout(shared, 2, steps, DType::bf16);
    CHECK(run.wrong == "");
    // Each part of a weight has its own scale, so bits differ, and the differences grow from step
    // to step.
    check_fp8_near(run.losses, alone.losses, 0.03);
    check_fp8_near({run.norms[0]}, {alone.norms[0]}, 0.05);
    CHECK(run_layout(shared, 2, steps, DType::bf16).losses == run.losses);
  }
}

}  // namespace sortie::trainer::test
