#include "common/config/validate.h"

#include <doctest/doctest.h>

#include <functional>

using namespace sortie::config;

namespace {

/// "rule first-key: message" of each violation, one per line.
std::string text_of(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& violation : violations) {
    if (!text.empty()) text += '\n';
    text += std::string(violation.rule) + " " + violation.keys.front() + ": " + violation.message;
  }
  return text;
}

std::string batch_error(const TopologyConfig& topology, std::int64_t world_size) {
  return text_of(resolve_batch(topology, world_size).violations);
}

}  // namespace

TEST_CASE("the default job breaks no rule, and only lacks token files for training") {
  CHECK(text_of(validate(JobConfig{})) == "");
  CHECK(text_of(validate_training(JobConfig{})) ==
        "D1 data.data_prefixes: no token files to train on; set it to the PREFIX of PREFIX.bin and "
        "PREFIX.idx (`sortie-train data build` makes them)");
}

TEST_CASE("a network is an interface, a pattern of interfaces, or a CIDR") {
  JobConfig job;
  for (const char* good : {"", "eth1", "ib*", "enp3s0f0.100", "*", "10.1.0.0/16", "0.0.0.0/0",
                           "fd00::/64", "10.1.2.3/32"}) {
    CAPTURE(good);
    job.runner.network.interface = good;
    CHECK(text_of(validate(job)) == "");
  }
  for (const char* bad : {"10.1.0.0/", "10.1.0/16", "10.1.0.0/-1", "10.1.0.0/1 ", "fd00::/129", "/",
                          "a/b", "a-name-too-long-", "e\"", "eth0\n"}) {
    CAPTURE(bad);
    job.runner.network.interface = bad;
    CHECK(text_of(validate(job)).starts_with("F1 runner.network.interface: "));
  }
}

TEST_CASE("each rule names the numbers and what to do") {
  struct Row {
    std::function<void(JobConfig&)> change;
    const char* error;
  };
  const Row rows[] = {
      {[](JobConfig& job) { job.model.vocab_size = 0; },
       "F1 model.vocab_size: 0 is out of range; use 1 to 2147483647"},
      {[](JobConfig& job) {
         job.runner.hosts = {"a"};
         job.runner.hosts_file = "f";
       },
       "R1 runner.hosts_file: runner.hosts is set too; remove one of the two"},
      {[](JobConfig& job) {
         job.runner.hosts = {"a", "b", "a"};
       },
       "R1 runner.hosts: runner.hosts[2]: host a is already in runner.hosts[0]; remove one of the "
       "two"},
      {[](JobConfig& job) {
         job.runner.program = {"", "x"};
       },
       "R2 runner.program: the program's name is empty; write it first"},
      {[](JobConfig& job) { job.runner.heartbeat_timeout = Milliseconds(4000); },
       "R4 runner.heartbeat_timeout: 4s is not more than twice runner.heartbeat_interval = 2s, so "
       "one late message would look like a lost host; use more than 4s"},
      {[](JobConfig& job) {
         job.runner.env = {{"OMP_NUM_THREADS", "1"}, {"RANK", "0"}};
       },
       "R5 runner.env.RANK: RANK is set by Sortie itself, another value for each rank; remove it"},
      {[](JobConfig& job) {
         job.runner.env = {{"SORTIE_X", "1"}};
       },
       "R5 runner.env.SORTIE_X: SORTIE_X is set by Sortie itself, another value for each rank; "
       "remove it"},
      {[](JobConfig& job) {
         job.runner.env = {{"TORCHELASTIC_RUN_ID", "1"}};
       },
       "R5 runner.env.TORCHELASTIC_RUN_ID: TORCHELASTIC_RUN_ID is set by Sortie itself, another "
       "value for each rank; remove it"},
      {[](JobConfig& job) { job.runner.network.interface = "10.1.0.0/33"; },
       "F1 runner.network.interface: \"10.1.0.0/33\" is no network; write it like "
       "\"10.1.0.0/16\" or \"fd00::/64\""},
      {[](JobConfig& job) { job.runner.network.interface = "eth 1"; },
       "F1 runner.network.interface: \"eth 1\" is no name of an interface; write one of at most "
       "15 letters like \"eth1\", a pattern like \"ib*\", or a network like \"10.1.0.0/16\""},
      {[](JobConfig& job) { job.topology = {.micro_batch_size = 4, .global_batch_size = 30}; },
       "T4 topology.global_batch_size: 30 is no multiple of 4 = 4 (micro_batch_size) * 1 "
       "(gradient_accumulation_steps), so no number of ranks fits; use 28 or 32"},
      {[](JobConfig& job) { job.topology.micro_batch_size = 0; },
       "T4 topology.micro_batch_size: 0 can only be derived from gradient_accumulation_steps and "
       "global_batch_size; set micro_batch_size, or both of those"},
      {[](JobConfig& job) {
         job.topology = {.data_parallel_size = 3, .micro_batch_size = 2, .global_batch_size = 16};
       },
       "T4 topology.global_batch_size: 16 is no multiple of 6 = 2 (micro_batch_size) * 3 (ranks), "
       "so gradient_accumulation_steps is no whole number; use 12 or 18"},
      {[](JobConfig& job) { job.learning_rate_scheduler.learning_rate_minimum = 0.1; },
       "L1 learning_rate_scheduler.learning_rate_minimum: 0.1 is above learning_rate = 0.0003; "
       "lower it"},
      {[](JobConfig& job) { job.learning_rate_scheduler.learning_rate_warmup_steps = 1000; },
       "L1 learning_rate_scheduler.learning_rate_warmup_steps: 1000 leaves no step to decay in, "
       "because the decay ends at step 1000 (trainer.train_iterations); use less, or "
       "learning_rate_decay_style = \"constant\""},
      {[](JobConfig& job) {
         job.learning_rate_scheduler.learning_rate_warmup_steps = 60;
         job.learning_rate_scheduler.learning_rate_decay_iters = 50;
       },
       "L1 learning_rate_scheduler.learning_rate_warmup_steps: 60 leaves no step to decay in, "
       "because the decay ends at step 50 (learning_rate_decay_iters); use less, or "
       "learning_rate_decay_style = \"constant\""},
      {[](JobConfig& job) {
         job.learning_rate_scheduler.learning_rate_warmup_steps = 1000;
         job.learning_rate_scheduler.learning_rate_decay_style = "constant";
       },
       ""},
      {[](JobConfig& job) { job.trainer.save_interval = 10; },
       "C1 trainer.save_interval: 10 asks for checkpoints, but trainer.save_dir is empty; set it"},
      {[](JobConfig& job) { job.trainer.eval_interval = 10; },
       "D2 trainer.eval_interval: 10 asks for validation, but data.validation_data_prefixes is "
       "empty; set it"},
      {[](JobConfig& job) {
         job.profiler.profile_steps = 1;
         job.trainer.train_iterations = 5;
       },
       "P1 profiler.profile_start_at_step: 10 is after the last step, trainer.train_iterations = "
       "5; use less"},
      {[](JobConfig& job) { job.model.attention_num_kv_heads = 3; },
       "T5 model.attention_num_kv_heads: model.num_attention_heads = 4 is no multiple of 3; use 2 "
       "or 4"},
      {[](JobConfig& job) { job.model.attention_num_kv_heads = 8; },
       "T5 model.attention_num_kv_heads: model.num_attention_heads = 4 is no multiple of 8; use "
       "4"},
      {[](JobConfig& job) { job.model.attention_num_kv_heads = 2; }, ""},
      {[](JobConfig& job) {
         job.model.architecture = "gpt-neo-x";
         job.model.attention_num_kv_heads = 2;
       },
       "T5 model.attention_num_kv_heads: gpt-neo-x has as many key and value heads as query heads, "
       "4, not 2; use 4, or 0"},
      {[](JobConfig& job) { job.model.hidden_size = 250; },
       "T5 model.hidden_size: 250 is no multiple of model.num_attention_heads = 4; use 248 or 252, "
       "or set model.head_dim"},
      {[](JobConfig& job) {
         job.model.hidden_size = 250;
         job.model.head_dim = 64;
       },
       ""},
      {[](JobConfig& job) { job.model.rotary_percentage = 0.3; },
       "T5 model.rotary_percentage: RoPE turns pairs, and 0.3 of a head width of 64 is 19.2, not "
       "an even number from 2; use rotary_percentage = 0.28125 or 0.3125 (18 or 20 of 64)"},
      {[](JobConfig& job) { job.model.rotary_percentage = 0.01; },
       "T5 model.rotary_percentage: RoPE turns pairs, and 0.01 of a head width of 64 is 0.64, not "
       "an even number from 2; use rotary_percentage = 0.03125 (2 of 64)"},
      {[](JobConfig& job) { job.model.head_dim = 1; },
       "T5 model.rotary_percentage: RoPE turns pairs, and 1.0 of a head width of 1 is 1, not an "
       "even number from 2; use a head width of 2 or more"},
      {[](JobConfig& job) { job.model.head_dim = 33; },
       "T5 model.rotary_percentage: RoPE turns pairs, and 1.0 of a head width of 33 is 33, not an "
       "even number from 2; use an even head width"},
      {[](JobConfig& job) { job.model.rotary_percentage = 0.25; }, ""},
      {[](JobConfig& job) {
         job.model.head_dim = 20;
         job.model.rotary_percentage = 0.1;
       },
       ""},
  };
  for (const Row& row : rows) {
    JobConfig job;
    row.change(job);
    CHECK(text_of(validate(job)) == row.error);
  }
}

TEST_CASE("every broken rule is reported, not only the first") {
  JobConfig job;
  job.runner.heartbeat_timeout = Milliseconds(1000);
  job.trainer.save_interval = 1;
  job.model.hidden_size = 255;
  CHECK(validate(job).size() == 3);
}

TEST_CASE("two of the three batch keys decide") {
  struct Row {
    TopologyConfig topology;
    std::int64_t world_size;
    BatchPlan plan;
  };
  const Row rows[] = {
      {{}, 4, {4, 1, 1, 4}},
      {{.micro_batch_size = 2}, 4, {4, 2, 1, 8}},
      {{.micro_batch_size = 2, .gradient_accumulation_steps = 3}, 4, {4, 2, 3, 24}},
      {{.micro_batch_size = 2, .global_batch_size = 24}, 4, {4, 2, 3, 24}},
      {{.micro_batch_size = 0, .gradient_accumulation_steps = 3, .global_batch_size = 24},
       4,
       {4, 2, 3, 24}},
      {{.data_parallel_size = 4,
        .micro_batch_size = 2,
        .gradient_accumulation_steps = 3,
        .global_batch_size = 24},
       4,
       {4, 2, 3, 24}},
  };
  for (const Row& row : rows) {
    const BatchOutcome outcome = resolve_batch(row.topology, row.world_size);
    CHECK(text_of(outcome.violations) == "");
    CHECK(outcome.plan == row.plan);
    CHECK(text_of(check_batch(row.topology)) == "");
  }
}

TEST_CASE("batch sizes that do not fit the ranks name the nearest that do") {
  CHECK(batch_error({.micro_batch_size = 2, .global_batch_size = 20}, 4) ==
        "T4 topology.global_batch_size: 20 is no multiple of 8 = 2 (micro_batch_size) * 4 (ranks), "
        "so gradient_accumulation_steps is no whole number; use 16 or 24");
  CHECK(batch_error({.micro_batch_size = 2, .global_batch_size = 4}, 4) ==
        "T4 topology.global_batch_size: 4 is no multiple of 8 = 2 (micro_batch_size) * 4 (ranks), "
        "so gradient_accumulation_steps is no whole number; use 8");
  CHECK(
      batch_error(
          {.micro_batch_size = 0, .gradient_accumulation_steps = 3, .global_batch_size = 20}, 4) ==
      "T4 topology.global_batch_size: 20 is no multiple of 12 = 3 (gradient_accumulation_steps) "
      "* 4 (ranks), so micro_batch_size is no whole number; use 12 or 24");
  CHECK(
      batch_error(
          {.micro_batch_size = 2, .gradient_accumulation_steps = 3, .global_batch_size = 12}, 4) ==
      "T4 topology.global_batch_size: 12 is not 24 = 2 (micro_batch_size) * 3 "
      "(gradient_accumulation_steps) * 4 (ranks); use 24, or set one of the three to 0");
  CHECK(batch_error({.data_parallel_size = 3}, 4) ==
        "T2 topology.data_parallel_size: 3 does not fit a job of 4 ranks; use 4, or 0 to follow "
        "the hosts");
  CHECK(
      batch_error({.micro_batch_size = 1 << 20, .gradient_accumulation_steps = 1 << 20}, 1 << 28) ==
      "T4 topology.global_batch_size: 1099511627776 sequences on each of 268435456 ranks is too "
      "large; lower micro_batch_size or gradient_accumulation_steps");
}

TEST_CASE("weights are one per prefix, and Megatron's order of several prefixes has them") {
  JobConfig job;
  job.data.data_prefixes = {"/a", "/b"};
  CHECK(text_of(validate_training(job)) == "");
  job.data.weights = {"1"};
  CHECK(text_of(validate_training(job)) ==
        "D3 data.weights: 1 weights for 2 prefixes; give one for each, or none");
  job.data.weights = {"1", "0.5"};
  job.data.sampler = "megatron";
  CHECK(text_of(validate_training(job)) == "");
  job.data.weights.clear();
  CHECK(text_of(validate_training(job)) ==
        "D3 data.sampler: megatron blends the 2 prefixes by weights; set data.weights");
}
