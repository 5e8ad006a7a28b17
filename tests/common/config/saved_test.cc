// Configs saved in checkpoints, by this version and by others.
#include "common/config/saved.h"

#include <doctest/doctest.h>

#include "common/config/load.h"

using namespace sortie::config;

TEST_CASE("a job that was written comes back, whatever rules say today") {
  JobConfig job;
  job.model.num_layers = 7;
  job.trainer.eval_interval = 5;  // violates rule D2: no validation data
  job.runner.env = {{"A", "b"}};
  job.model.moe.topk = 3;
  const auto saved = parse_saved_job(to_toml(job), "manifest.json");
  REQUIRE_MESSAGE(saved, (saved ? "" : saved.error().message));
  CHECK(to_toml(*saved) == to_toml(job));
  CHECK_FALSE(load_job_text(to_toml(job), "manifest.json"));
}

TEST_CASE("keys of other versions are passed over, impossible values are not") {
  const auto newer = parse_saved_job(
      "[model]\nnum_layers = 3\nflux = 88\n[time.machine]\nyear = 1985\n", "manifest.json");
  REQUIRE(newer);
  CHECK(newer->model.num_layers == 3);
  CHECK(newer->model.hidden_size == JobConfig{}.model.hidden_size);
  for (const char* text : {"[model]\nnum_layers = 0\n", "[model]\narchitecture = \"x\"\n",
                           "[model]\nnum_layers = \"3\"\n", "[model\n"}) {
    CAPTURE(text);
    const auto bad = parse_saved_job(text, "manifest.json");
    REQUIRE_FALSE(bad);
    CHECK(bad.error().message.starts_with("manifest.json:"));
  }
}

TEST_CASE("a saved model is known as a whole, the rest of its job need not be") {
  const auto older = parse_saved_model(
      "[model]\nnum_layers = 3\n[trainer]\neval_iterations = 8\neval_interval = 5\n",
      "manifest.json");
  REQUIRE_MESSAGE(older, (older ? "" : older.error().message));
  CHECK(older->model.num_layers == 3);
  CHECK(older->trainer.eval_interval == 5);
  for (const char* text :
       {"[model]\nflux = 88\n", "[model.moe]\nflux = 88\n", "[lora]\nflux = 88\n",
        "[model]\nhidden_size = 100\nnum_attention_heads = 7\n"}) {
    CAPTURE(text);
    const auto bad = parse_saved_model(text, "manifest.json");
    REQUIRE_FALSE(bad);
    CHECK(bad.error().code == sortie::ErrorCode::config);
    CHECK(bad.error().message.starts_with("manifest.json:"));
  }
}
