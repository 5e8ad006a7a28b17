// Compares data parallelism, on which every other layout builds, with one process.
#include "tests/trainer/layouts/layout_runs.h"

namespace sortie::trainer::test {
namespace {

TEST_CASE("replicas train as one process does") {
  const config::JobConfig job = tiny_job();
  const LayoutRun alone = run_layout(job, 1, 20);
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    check_equal(run_layout(job, ranks, 20), alone);
  }
}

}  // namespace
}  // namespace sortie::trainer::test
