// Tests of `sortie-train plan` as a user and as sortie call it.
#include <doctest/doctest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/child.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace {

using sortie::test::has;

sortie::testing::Finished plan(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {SORTIE_TRAIN_BINARY, "plan"});
  return sortie::testing::run(arguments);
}

constexpr const char* kPlanConfig = R"([model]
preset = "gpt2-124m"
precision = "f32"
[topology]
micro_batch_size = 2
global_batch_size = 8
)";

}  // namespace

TEST_CASE("sortie-train plan prints what a rank takes, as text and as JSON") {
  const sortie::testing::TempDir dir;
  const std::string file = dir.str("job.toml");
  sortie::test::write_text(file, kPlanConfig);
  const auto text = plan({file, "--threads", "2"});
  CAPTURE(text.output);
  CHECK(text.code == 0);
  CHECK(has(text.output, "  model     gpt2 (gpt2-124m): 124,439,808 parameters\n"));
  CHECK(
      has(text.output, "  memory    of a rank with 2 threads that trains 2 sequences at a time ("));
  CHECK(has(text.output, "\n    gradients                475\n"));

  const auto answer = plan({file, "--threads", "2", "--json"});
  CHECK(answer.code == 0);
  const auto json = nlohmann::json::parse(answer.output);
  CHECK(json["parameters"] == 124439808);
  CHECK(json["version"].is_string());
  const auto alone = json["rank_memory_bytes"]["f32"];
  const auto more = nlohmann::json::parse(plan({file, "--json", "--world", "4"}).output);
  CHECK(more["rank_memory_bytes"]["f32"]["packed_weights"] == 0);  // one micro-batch per step
  CHECK(alone["packed_weights"] > 0);
  const auto smaller =
      nlohmann::json::parse(plan({file, "--threads", "2", "--json", "--micro-batch", "1"}).output);
  CHECK(smaller["rank_memory_bytes"]["f32"]["activations"] < alone["activations"]);
  CHECK(smaller["rank_memory_bytes"]["f32"]["optimizer"] == alone["optimizer"]);
}

TEST_CASE("sortie-train plan of FP8 needs GPUs, and names what stays in bf16") {
  const sortie::testing::TempDir dir;
  const std::string file = dir.str("job.toml");
  sortie::test::write_text(file, kPlanConfig);
  const std::vector<std::string> fp8 = {file, "--set", "model.precision=fp8"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), fp8.begin(), fp8.end());
    return plan(more);
  };
  const auto none = with({});
  CHECK(none.code != 0);
  CHECK(has(none.output,
            "model.precision = \"fp8\": products in FP8 need GPUs, and this plan is "
            "one of CPUs; set trainer.device = \"cuda\", or use \"bf16\""));
  const auto json = nlohmann::json::parse(with({"--gpu", "--json"}).output);
  CHECK(json["rank_memory_bytes"].size() == 1);
  CHECK(json["rank_memory_bytes"]["fp8"]["packed_weights"] > 0);  // two casts of each weight
  CHECK_FALSE(json.contains("note"));
  const auto odd = with({"--gpu", "--set", "model.ffn_hidden_size=3080"});
  CHECK(odd.code == 0);
  CHECK(has(odd.output,
            "  note      precision fp8: layers.0.mlp.up.weight and 23 more multiply in bf16: rows "
            "and columns are not multiples of 16 (3080 x 768)\n"));
  CHECK(has(with({"--gpu", "--set", "model.sequence_length=1023", "--micro-batch", "1"}).output,
            "gives each rank 1023 rows to multiply, which has to be a multiple of 16"));
}

TEST_CASE("sortie-train plan counts the memory of a GPU where the job asks for one") {
  const sortie::testing::TempDir dir;
  const std::string file = dir.str("job.toml");
  sortie::test::write_text(file, kPlanConfig);
  const auto by_option = plan({file, "--threads", "2", "--json", "--gpu"});
  CHECK(by_option.code == 0);
  CHECK(by_option.output ==
        plan({file, "--threads", "2", "--json", "--set", "trainer.device=cuda"}).output);
  const auto json = nlohmann::json::parse(by_option.output);
  CHECK(json["isa"] == "gpu");
  CHECK(json["rank_memory_bytes"]["f32"]["device"] > 0);
  CHECK(json["rank_memory_bytes"]["f32"]["packed_weights"] == 0);
  const auto text = plan({file, "--threads", "2", "--gpu"});
  CHECK(has(text.output, "(on a GPU, device: that of an H200), in MiB\n"));
  CHECK(has(text.output, "\n    device "));
  CHECK_FALSE(has(plan({file, "--threads", "2"}).output, "\n    device "));
}

TEST_CASE("a config that sortie-train plan refuses is an error in its JSON too") {
  const sortie::testing::TempDir dir;
  const std::string file = dir.str("job.toml");
  sortie::test::write_text(file, kPlanConfig);
  const auto refused = plan({file, "--json", "--set", "optimizer.freeze=[\"layrs.*\"]"});
  CHECK(refused.code == 2);
  const std::string line = refused.output.substr(refused.output.find('{'));
  const auto json = nlohmann::json::parse(line.substr(0, line.find('\n')));
  CHECK(has(json["error"].get<std::string>(), "optimizer.freeze: \"layrs.*\" matches nothing"));
  CHECK(has(plan({dir.str("none.toml")}).output, "none.toml"));
  CHECK(plan({file, "--world", "3"}).code == 2);  // no whole number of micro-batches
}

TEST_CASE("a model of 8e9 parameters is planned in a moment") {
  const sortie::testing::TempDir dir;
  const std::string file = dir.str("job.toml");
  sortie::test::write_text(file, "[model]\npreset = \"llama-3.1-8b\"\n");
  auto best = std::chrono::steady_clock::duration::max();
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    CHECK(plan({file, "--json", "--threads", "8"}).code == 0);
    best = std::min(best, std::chrono::steady_clock::now() - begin);
  }
  const double seconds = std::chrono::duration<double>(best).count();
  MESSAGE("sortie-train plan of llama-3.1-8b: " << seconds << " s");
  CHECK(seconds < 3.0);  // 0.1 s on an idle machine
}
