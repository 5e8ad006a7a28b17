// Compares sizes and costs that were published, or that a formula gives, with what the models
// declare and a step on the meta device counts.
#include <doctest/doctest.h>

#include "common/config/architectures.h"
#include "trainer/hf/folder.h"
#include "trainer/planning/rank_plan.h"

namespace sortie::trainer {
namespace {

config::JobConfig job_of(std::string_view preset) {
  const config::Preset* found = config::find_preset(preset);
  REQUIRE(found != nullptr);
  config::JobConfig job;
  job.model = found->model;
  return job;
}

RankPlan planned(const config::JobConfig& job, const PlanOptions& options = {}) {
  auto plan = plan_rank(job, options);
  REQUIRE_MESSAGE(plan.has_value(), (plan ? "" : plan.error().message));
  return *plan;
}
ParameterCount counted(const config::JobConfig& job) {
  return planned(job).parameters;
}
double flops(const config::JobConfig& job) {
  return planned(job).flop_per_token;
}

}  // namespace

TEST_CASE("presets have the numbers of parameters that were published") {
  const std::pair<const char*, std::int64_t> published[] = {
      {"gpt2-124m", 124439808},     {"gpt2-355m", 354823168},     {"gpt2-774m", 774030080},
      {"gpt2-1.5b", 1557611200},    {"pythia-70m", 70426624},     {"pythia-160m", 162322944},
      {"pythia-410m", 405334016},   {"pythia-1b", 1011781632},    {"pythia-1.4b", 1414647808},
      {"llama-3.2-1b", 1235814400}, {"llama-3.1-8b", 8030261248}, {"qwen2.5-0.5b", 494032768},
      {"qwen2.5-1.5b", 1543714304}};
  for (const auto& [name, total] : published) {
    CAPTURE(std::string(name));
    const ParameterCount count = counted(job_of(name));
    CHECK(count.total == total);
    CHECK(count.active == total);
    CHECK(count.trained == total);
  }
}

TEST_CASE("of a mixture a token meets the top k experts") {
  const ParameterCount count = counted(job_of("openseek-small"));
  CHECK(static_cast<double>(count.total) == doctest::Approx(1.4e9).epsilon(0.03));
  const std::int64_t expert = 3 * 1280 * 896, experts = 5 * 64;
  CHECK(count.total - count.active == experts * expert - 5 * 6 * expert);
}

TEST_CASE("a token costs six operations a weight and twelve a key's element") {
  config::JobConfig job = job_of("gpt2-124m");
  const double weights = 12.0 * 768 * 768 * 12 + 768.0 * 50257;
  const double keys = 12.0 * 6 * 12 * (64 + 64) * 512.5;  // a token sees itself, too
  CHECK(flops(job) == doctest::Approx(6 * weights + keys));

  SUBCASE("a window leaves fewer keys") {
    job.model.architecture = "gpt-neo";  // every other layer sees 256 tokens
    const double seen = 256 - 256.0 * 255 / 2048;
    CHECK(flops(job) == doctest::Approx(6 * weights + 6.0 * 6 * 12 * 128 * (512.5 + seen)));
  }
  SUBCASE("a frozen weight has no gradient") {
    job.optimizer.freeze = {"layers.*"};
    CHECK(flops(job) == doctest::Approx(6 * weights + keys - 2 * 12.0 * 768 * 768 * 12));
    CHECK(counted(job).trained == (50257 + 1024 + 2) * 768);
  }
  SUBCASE("frozen first layers have a forward pass alone") {
    job.optimizer.freeze = {"embedding.*", "positions.*", "layers.*"};
    job.model.weight_tying = false;  // final norm and head are left
    CHECK(flops(job) == doctest::Approx(2 * 12.0 * 768 * 768 * 12 + keys / 3 + 6 * 768.0 * 50257));
  }
  SUBCASE("multi-token prediction multiplies with the head again") {
    job = job_of("openseek-small");
    const double without = flops(job);
    job.model.mtp.num_layers = 1;
    const double head = 6.0 * 1280 * 151851, join = 6.0 * 2 * 1280 * 1280;
    CHECK(flops(job) - without > head + join);
    CHECK(flops(job) - without < 1.3 * (head + join));
  }
}

TEST_CASE("patterns that match nothing are told before anything starts") {
  config::JobConfig job = job_of("gpt2-124m");
  job.optimizer.freeze = {"layer.*"};
  const auto unmatched = plan_rank(job, {});
  REQUIRE(!unmatched.has_value());
  CHECK(unmatched.error().message ==
        "optimizer.freeze: \"layer.*\" matches nothing; names are like embedding.weight");
  job.optimizer.freeze = {};
  job.lora.rank = 4;
  job.lora.modules = {"*.qk"};
  const auto no_module = plan_rank(job, {});
  REQUIRE(!no_module.has_value());
  CHECK(no_module.error().message ==
        "lora.modules: \"*.qk\" matches nothing; names are like layers.0.attention.qkv");
}

TEST_CASE("sizes that each are allowed and together are absurd are an error, not an overflow") {
  config::JobConfig job = job_of("openseek-small");
  job.model.num_layers = 65536;
  job.model.moe.num_experts = 65536;
  const auto too_many = plan_rank(job, {});
  REQUIRE(!too_many.has_value());
  CHECK(too_many.error().code == ErrorCode::config);
  CHECK(too_many.error().message.find("is a size mistyped?") != std::string::npos);
  job = job_of("llama-3.1-8b");
  job.model.sequence_length = 1 << 24;
  job.model.head_dim = 65536;
  job.model.num_attention_heads = 65536;
  CHECK(!plan_rank(job, {.micro_batch_size = 1 << 20}).has_value());
}

TEST_CASE("a plan for GPUs refuses a model that they do not support") {
  const auto message_of = [](const config::JobConfig& job) {
    CHECK(plan_rank(job, {}).has_value());
    const auto plan = plan_rank(job, {.dtype = DType::bf16, .gpu = true});
    return plan ? std::string("none") : plan.error().message;
  };
  config::JobConfig job = job_of("llama-3.1-8b");
  job.model.head_dim = 320;
  CHECK(message_of(job) ==
        "model.head_dim: heads of 320 dimensions are wider than the 256 that GPUs support; use "
        "narrower heads, or compute on the CPU (trainer.device = \"cpu\")");
  job = job_of("openseek-small");
  job.model.num_layers = 2;
  job.model.moe.num_experts = 4096;
  CHECK(message_of(job) == "none");
  job.model.moe.num_experts = 4098;
  CHECK(message_of(job) ==
        "model.moe.num_experts: 4098 experts are more than the 4096 that GPUs support; use fewer, "
        "or compute on the CPU (trainer.device = \"cpu\")");
}

TEST_CASE("a plan says of all pipeline stages together what FP8 leaves in bf16") {
  config::JobConfig job = job_of("llama-3.1-8b");
  job.model.precision = "fp8";
  job.model.ffn_hidden_size = 14344;
  job.topology.pipeline_parallel_size = 2;
  const auto stages = plan_stages(job, {.world_size = 2, .dtype = DType::bf16, .gpu = true});
  REQUIRE(stages.has_value());
  CHECK(
      whole_plan(*stages).in_bf16.text() ==
      "precision fp8: layers.0.mlp.down.weight and 31 more multiply in bf16: rows and columns are "
      "not multiples of 16 (4096 x 14344)");
}

TEST_CASE("the largest model that was published is planned") {
  config::JobConfig job = job_of("openseek-small");  // DeepSeek-V3
  config::ModelConfig& m = job.model;
  m.vocab_size = 129280;
  m.hidden_size = 7168;
  m.num_layers = 61;
  m.num_attention_heads = 128;
  m.ffn_hidden_size = 18432;
  m.weight_tying = false;
  m.mla.q_lora_rank = 1536;
  m.moe.num_experts = 256;
  m.moe.topk = 8;
  m.moe.ffn_hidden_size = 2048;
  m.moe.num_shared_experts = 1;
  m.moe.first_dense_layers = 3;
  const RankPlan plan = planned(job, {.dtype = DType::bf16, .threads = 8});
  const ParameterCount& count = plan.parameters;
  CHECK(static_cast<double>(count.total) == doctest::Approx(671e9).epsilon(0.001));
  // The report counts the look-up of a token as one row of the table.
  CHECK(static_cast<double>(count.active) == doctest::Approx(37.5e9).epsilon(0.01));
  CHECK(plan.memory.optimizer >= 8 * count.total);
}

TEST_CASE("every reference model is planned, with LoRA and frozen parts too") {
  int folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SORTIE_TEST_DATA "/hf")) {
    const auto folder = HfFolder::open(entry.path());
    REQUIRE(folder.has_value());
    ++folders;
    CAPTURE(entry.path().string());
    config::JobConfig job;
    job.model = folder->model();
    const ParameterCount whole = counted(job);
    CHECK(whole.trained == whole.total);
    job.optimizer.freeze = {"embedding.*", "layers.0.*"};
    CHECK(counted(job).trained < whole.total);
    CHECK(counted(job).total == whole.total);
    job.optimizer.freeze.clear();
    job.lora.rank = 3;
    job.lora.modules = {"*.attention.*"};
    const ParameterCount updated = counted(job);
    CHECK(updated.total == whole.total + updated.trained);
  }
  CHECK(folders > 20);
}

TEST_CASE("recomputation is in no count of operations") {
  for (const char* preset : {"gpt2-124m", "openseek-small"}) {
    config::JobConfig job = job_of(preset);
    job.model.mtp.num_layers = job.model.architecture == "deepseek-v3" ? 1 : 0;
    const RankPlan plain = planned(job);
    job.topology.activation_checkpointing_type = "every_layer";
    const RankPlan recomputed = planned(job);
    CHECK(recomputed.flop_per_token == plain.flop_per_token);
    CHECK(recomputed.memory.activations < plain.memory.activations);
  }
}

}  // namespace sortie::trainer
