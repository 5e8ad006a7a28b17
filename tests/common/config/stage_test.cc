#include "common/config/stage.h"

#include <doctest/doctest.h>

using namespace sortie::config;

TEST_CASE("every path that a rank starts from may be a staged one") {
  JobConfig job;
  job.runner.stage = {"ckpt"};
  job.trainer.load_weights_from = "{stage}/ckpt/step-1";
  CHECK(check_stage(job).empty());
  resolve_stage(job, "/cache/1");
  CHECK(job.trainer.load_weights_from == "/cache/1/ckpt/step-1");

  job.trainer.load_weights_from = "{stage}/cpkt";
  const auto wrong = check_stage(job);
  REQUIRE(wrong.size() == 1);
  CHECK(wrong.front().keys.front() == "trainer.load_weights_from");
}
