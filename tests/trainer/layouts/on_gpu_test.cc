// Every way to share a model out to ranks, each rank with a context of its own on the tested GPU,
// against one process on the CPU.
#include "tests/support/every_case.h"
#include "tests/trainer/layouts/expert_runs.h"
#include "tests/trainer/layouts/layout_runs.h"

namespace sortie::trainer::test {
namespace {

struct SharedOut {
  const char* name;
  std::function<void(config::TopologyConfig&)> change;
  int ranks = 2;
};

config::JobConfig shared_out_job(const std::string& architecture) {
  config::JobConfig job =
      architecture == "llama" ? tiny_job(architecture) : experts_job(architecture);
  job.model.num_layers = architecture == "llama" ? 4 : 2;
  job.model.sequence_length = 16;
  job.topology.global_batch_size = 4;
  job.topology.micro_batch_size = 1;
  job.optimizer.eps = 1e-4;  // what is rounded differently is not made large by a small moment
  return job;
}

void check_shared_out(const config::JobConfig& job, const std::vector<SharedOut>& ways, int steps) {
  const LayoutRun alone = [&] {
    const OnDevice cpu({});
    return run_layout(job, 1, steps);
  }();
  for (const SharedOut& way : ways) {
    CAPTURE(std::string(way.name));
    config::JobConfig shared = job;
    way.change(shared.topology);
    check_equal(run_layout(shared, way.ranks, steps), alone);
  }
}

}  // namespace

TEST_CASE("on a GPU: every way to share a model out gives the CPU's losses and gradients" *
          doctest::skip(no_gpu_is_tested())) {
  const int steps = sortie::test::every_case() ? 10 : 2;
  check_shared_out(
      shared_out_job("llama"),
      {{"replicas", [](auto&) {}},
       {"a sharded optimizer", [](auto& topology) { topology.parameter_sharding = "optimizer"; }},
       {"full sharding", [](auto& topology) { topology.parameter_sharding = "full"; }},
       {"shared layers",
        [](auto& topology) {
          topology.tensor_parallel_size = 2;
          topology.sequence_parallel = true;
        }},
       {"shared sequences", [](auto& topology) { topology.context_parallel_size = 2; }},
       {"stages", [](auto& topology) { topology.pipeline_parallel_size = 2; }}},
      steps);
  check_shared_out(
      shared_out_job("deepseek-v3"),
      {{"experts apart", [](auto& topology) { topology.expert_parallel_size = 2; }}}, steps);
}

TEST_CASE("on a GPU: tensor 2 x pipeline 2 x replicas 2" * doctest::skip(no_gpu_is_tested())) {
  check_shared_out(shared_out_job("llama"),
                   {{"mix",
                     [](auto& topology) {
                       topology.tensor_parallel_size = 2;
                       topology.sequence_parallel = true;
                       topology.pipeline_parallel_size = 2;
                       topology.parameter_sharding = "optimizer";
                     },
                     8}},
                   1);
}

}  // namespace sortie::trainer::test
