// Compares layers that the ranks of a group share (tensor parallelism) with one process: the cuts,
// the sums over ranks, and what each rank must do in the same way.
#include "tests/support/every_case.h"
#include "tests/trainer/layouts/family_jobs.h"
#include "tests/trainer/layouts/layout_runs.h"
#include "trainer/models/families.h"

namespace sortie::trainer::test {
namespace {

/// Returns a job with a shape that 2 and 4 ranks can share. It has 2 key-value heads, so with 4
/// ranks two ranks share each head.
config::JobConfig shared_job(const std::string& architecture) {
  return family_job(architecture, /*tokens=*/20);
}
config::JobConfig placed_job(const std::string& architecture) {
  return placed(shared_job(architecture), /*window=*/5);
}

config::JobConfig on_ranks(config::JobConfig job, int size, bool sequence = false) {
  job.topology.tensor_parallel_size = size;
  job.topology.sequence_parallel = sequence;
  return job;
}

/// Compares groups of these sizes, with and without shared rows, with one process.
void check_groups(const config::JobConfig& job, const std::vector<int>& sizes, int steps,
                  const std::vector<bool>& kinds = {false, true}, const LayoutExtras& extras = {}) {
  const LayoutRun alone = run_layout(job, 1, steps, DType::f32, {}, extras);
  for (const int size : sizes)
    for (const bool sequence : kinds) {
      CAPTURE(job.model.architecture);
      CAPTURE(size);
      CAPTURE(sequence);
      check_equal(run_layout(on_ranks(job, size, sequence), size, steps, DType::f32, {}, extras),
                  alone);
    }
}

TEST_CASE("layers shared by 2 and 4 ranks train as one process does") {
  check_groups(shared_job("gpt2"), {2, 4}, 20);
  check_groups(shared_job("llama"), {2, 4}, 20);
}

TEST_CASE("dropout, windows and documents are those of one process in every family") {
  for (const Family& family : families()) {
    const std::string name(family.name);
    if (!sortie::test::every_case() && name != "gpt-neo-x" && name != "qwen3" &&
        name != "deepseek-v3")
      continue;
    check_groups(placed_job(name), {2}, sortie::test::every_case() ? 20 : 3);
    if (sortie::test::every_case()) check_groups(placed_job(name), {4}, 3);
  }
}

}  // namespace
}  // namespace sortie::trainer::test
