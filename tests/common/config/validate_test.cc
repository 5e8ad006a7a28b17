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
      {[](JobConfig& job) {
         job.runner.transport = {"", "{host}"};
       },
       "R2 runner.transport: the program's name is empty; write it first"},
      {[](JobConfig& job) {
         job.runner.transport = {"docker", "exec", "-i", "host"};
       },
       "R2 runner.transport: no word of it has {host}, so it would reach the same place for every "
       "host; write {host} where the host's name belongs"},
      {[](JobConfig& job) {
         job.runner.transport = {"docker", "exec", "-i", "{host}"};
         job.runner.ssh.command = {"ssh"};
       },
       "R2 runner.transport: runner.ssh.command is set too; hosts are reached by one of the two, "
       "remove the other"},
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
      {[](JobConfig& job) { job.runner.network.tunnel = "ipsec"; },
       "F1 runner.network.tunnel: \"ipsec\" is not one of none | wireguard; write one of them"},
      {[](JobConfig& job) {
         job.runner.network.tunnel = "wireguard";
         job.runner.network.interface = "eth1";
       },
       "N1 runner.network.tunnel: runner.network.interface is set too, and the tunnel is the "
       "network of the ranks; remove one of the two"},
      {[](JobConfig& job) {
         job.runner.network.tunnel = "wireguard";
         job.runner.master_addr = "10.1.0.1";
       },
       "N1 runner.network.tunnel: runner.master_addr is set too, and ranks meet at an address "
       "within the tunnel, which is known only at the start; remove one of the two"},
      {[](JobConfig& job) {
         job.runner.network.tunnel = "wireguard";
         job.runner.allow_same_machine = true;
       },
       "N1 runner.network.tunnel: a machine has one end of the tunnel, and "
       "runner.allow_same_machine allows two names of one; remove one of the two"},
      {[](JobConfig& job) {
         job.runner.network.tunnel = "wireguard";
         job.runner.container.engine = "docker";
         job.runner.container.image = "debian:12";
         job.runner.container.network = "none";
       },
       "N1 runner.network.tunnel: the tunnel is a device of the host, which containers on the "
       "network \"none\" do not see; use runner.container.network = \"host\""},
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
      {[](JobConfig& job) {
         job.learning_rate_scheduler.learning_rate_decay_style = "warmup-stable-decay";
         job.learning_rate_scheduler.learning_rate_warmup_steps = 900;
         job.learning_rate_scheduler.wsd_decay_steps = 101;
       },
       "L1 learning_rate_scheduler.wsd_decay_steps: 101 steps of decay after 900 of warm-up are "
       "more than the 1000 of trainer.train_iterations; use at most 100"},
      {[](JobConfig& job) {  // how many steps three epochs are is not known yet
         job.learning_rate_scheduler.learning_rate_warmup_steps = 5000;
         job.trainer.train_epochs = 3;
       },
       ""},
      {[](JobConfig& job) {
         job.trainer.load_dir = "/a";
         job.trainer.load_weights_from = "/b";
       },
       "C2 trainer.load_weights_from: trainer.load_dir starts from a checkpoint with its optimizer "
       "and progress, this from its weights alone; remove one of the two"},
      {[](JobConfig& job) { job.topology.batch_rampup_start = 8; },
       "T6 topology.batch_rampup_increment: a batch ramp-up needs batch_rampup_start, "
       "batch_rampup_increment and batch_rampup_samples; set the three, or none"},
      {[](JobConfig& job) { job.trainer.save_interval = 10; },
       "C1 trainer.save_interval: 10 asks for checkpoints, but trainer.save_dir is empty; set it"},
      {[](JobConfig& job) { job.trainer.on_nonfinite = "ignore"; },
       "C3 trainer.on_nonfinite: \"ignore\" is no policy of this key; use \"skip\", \"stop\" or "
       "\"rollback N\""},
      {[](JobConfig& job) { job.trainer.on_replica_mismatch = "skip"; },
       "C3 trainer.on_replica_mismatch: \"skip\" is no policy of this key; use \"stop\" or "
       "\"rollback N\""},
      {[](JobConfig& job) { job.trainer.on_loss_spike = "ignore"; }, ""},
      {[](JobConfig& job) { job.trainer.on_loss_spike = "rollback 5"; },
       "C3 trainer.on_loss_spike: \"rollback 5\" goes back to a checkpoint, but trainer.save_dir "
       "is "
       "not set; set it"},
      {[](JobConfig& job) {
         job.trainer.save_dir = "/c";
         job.trainer.on_nonfinite = "rollback 5";
       },
       "C3 trainer.on_nonfinite: \"rollback 5\" goes back to a checkpoint, but "
       "trainer.save_interval is not set; set it"},
      {[](JobConfig& job) {
         job.trainer.save_dir = "/c";
         job.trainer.save_interval = 10;
         job.trainer.keep_last = 2;
         job.trainer.on_nonfinite = "rollback 11";  // of step 21: 10 and 20 are there
       },
       ""},
      {[](JobConfig& job) {
         job.trainer.save_dir = "/c";
         job.trainer.save_interval = 10;
         job.trainer.keep_last = 2;
         job.trainer.on_nonfinite = "rollback 12";  // of step 31: 20 and 30 are there, 19 is wanted
       },
       "C3 trainer.on_nonfinite: \"rollback 12\" needs a checkpoint of 12 steps before, but "
       "trainer.keep_last = 2 with save_interval = 10 does not keep it; use at least keep_last = "
       "3"},
      {[](JobConfig& job) {
         job.trainer.save_dir = "/c";
         job.trainer.save_interval = 10;
         job.trainer.on_replica_mismatch = "rollback 1";
       },
       "C4 trainer.on_replica_mismatch: replicas are compared every "
       "trainer.replica_check_interval steps, and that is not set; set it"},
      {[](JobConfig& job) {
         job.trainer.memory_checkpoint_interval = 20;
         job.recovery.max_restarts = 5;
       },
       "C6 trainer.memory_checkpoint_interval: checkpoints in memory end with the run, and "
       "save_dir "
       "says which attempt the run belongs to; set trainer.save_dir"},
      {[](JobConfig& job) {
         job.trainer.memory_checkpoint_interval = 20;
         job.trainer.save_dir = "/c";
       },
       "C7 trainer.memory_checkpoint_interval: checkpoints in memory are for restarts of the same "
       "run, and recovery.max_restarts = 0 allows none; set it"},
      {[](JobConfig& job) {
         job.trainer.memory_checkpoint_interval = 20;
         job.trainer.save_dir = "/checkpoints";
         job.recovery.max_restarts = 1;
         job.topology.pipeline_parallel_size = 2;
       },
       "C8 trainer.memory_checkpoint_interval: hosts keep each other's state in memory by what "
       "replicas have alike, and here no rank has the whole state; set it to 0"},
      {[](JobConfig& job) {
         job.trainer.replica_check_interval = 5;
         job.topology.parameter_sharding = "full";
       },
       "C9 trainer.replica_check_interval: no two replicas have the same weights where each keeps "
       "a share of them, so there is nothing to compare; set it to 0"},
      {[](JobConfig& job) {
         job.trainer.memory_checkpoint_interval = 20;
         job.trainer.save_dir = "/checkpoints";
         job.recovery.max_restarts = 1;
         job.model.architecture = "mixtral";
         job.topology.expert_parallel_size = 2;
       },
       "C8 trainer.memory_checkpoint_interval: hosts keep each other's state in memory by what "
       "replicas have alike, and here no rank has the whole state; set it to 0"},
      {[](JobConfig& job) {
         job.recovery.slow_swaps = 1;
         job.recovery.max_restarts = 1;
         job.watchdog.straggler_ratio = 0;
       },
       "W1 recovery.slow_swaps: a slow host leaves by a restart, once it was named, and "
       "watchdog.straggler_ratio is 0; set it"},
      {[](JobConfig& job) {
         job.recovery.grow_at = "checkpoint";
         job.recovery.max_restarts = 1;
       },
       "W2 recovery.grow_at: only a run that restarts with fewer hosts can take hosts in again, "
       "and recovery.min_hosts is 0; set it"},
      {[](JobConfig& job) { job.optimizer.top_k = 8; },
       "O2 optimizer.top_k: optimizer.name = \"adamw\" has no such setting; remove it, or set "
       "optimizer.name = \"demo\""},
      {[](JobConfig& job) {
         job.optimizer.name = "demo";
         job.optimizer.momentum = 0.95;
         job.optimizer.beta2 = 0.99;
       },
       "O2 optimizer.beta2: optimizer.name = \"demo\" has no such setting; remove it, or set "
       "optimizer.name = \"adamw\""},
      {[](JobConfig& job) {
         job.optimizer.name = "demo";
         job.optimizer.chunk = 16;
         job.optimizer.top_k = 257;
       },
       "O3 optimizer.top_k: 257 coefficients are more than a block of 16 x 16 has; use at most "
       "256"},
      {[](JobConfig& job) {
         job.optimizer.name = "demo";
         job.topology.parameter_sharding = "optimizer";
       },
       "O4 topology.parameter_sharding: \"optimizer\" keeps a share of one optimizer state on each "
       "rank, and with optimizer.name = \"demo\" every rank has a momentum of its own; use "
       "\"none\""},
      {[](JobConfig& job) {
         job.optimizer.name = "demo";
         job.model.architecture = "mixtral";
         job.topology.expert_parallel_size = 2;
       },
       "O4 topology.expert_parallel_size: with optimizer.name = \"demo\" the ranks that hold one "
       "expert have to be those that hold all else; use 1"},
      {[](JobConfig& job) {
         job.optimizer.name = "demo";
         job.outer.every = 20;
       },
       "O4 outer.every: rounds between sites train with AdamW in them; remove it, or "
       "optimizer.name = \"demo\""},
      {[](JobConfig& job) {
         job.optimizer.name = "demo";
         job.topology.gradient_compression = "high";
       },
       "O4 topology.gradient_compression: rounds between sites train with AdamW in them; remove "
       "it, "
       "or optimizer.name = \"demo\""},
      {[](JobConfig& job) {
         job.optimizer.name = "demo";
         job.trainer.memory_checkpoint_interval = 20;
         job.trainer.save_dir = "/checkpoints";
         job.recovery.max_restarts = 1;
       },
       "O4 trainer.memory_checkpoint_interval: hosts keep each other's state in memory by what "
       "replicas have alike, and with optimizer.name = \"demo\" every rank has a momentum of its "
       "own; set it to 0"},
      {[](JobConfig& job) {
         job.optimizer.name = "demo";
         job.trainer.device = "cuda";
       },
       "O4 trainer.device: optimizer.name = \"demo\" computes on CPUs alone; use \"cpu\", or "
       "optimizer.name = \"adamw\""},
      {[](JobConfig& job) {
         job.optimizer.name = "demo";
         job.topology.tensor_parallel_size = 2;
         job.topology.gradient_compression = "none";
       },
       ""},
      {[](JobConfig& job) { job.trainer.scrub_interval = Milliseconds(1000); },
       "C5 trainer.scrub_interval: there are no checkpoints to check, because trainer.save_dir is "
       "empty; set it"},
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
      {[](JobConfig& job) {
         job.model.architecture = "gpt2";
         job.model.rotary_percentage = 0.3;  // there is no RoPE to turn by it
       },
       ""},
      {[](JobConfig& job) {
         job.model.architecture = "gpt2";
         job.model.head_dim = 32;
       },
       "T5 model.head_dim: the heads of gpt2 are cut from the hidden size, and 4 heads of 32 are "
       "not 256; use 0"},
      {[](JobConfig& job) {
         job.model.architecture = "qwen2";
         job.model.rotary_percentage = 0.5;
       },
       "T5 model.rotary_percentage: qwen2 turns whole heads; use 1.0"},
      {[](JobConfig& job) { job.model.attention_window = 16; },
       "M1 model.attention_window: llama has no local layers; remove it"},
      {[](JobConfig& job) { job.model.attention_layers = {"local"}; },
       "M1 model.attention_layers: llama has no local layers; remove it"},
      {[](JobConfig& job) {
         job.model.architecture = "mistral";
         job.model.attention_layers = {"global", "local"};
       },
       "M1 model.attention_layers: has local layers, but no model.attention_window says how far "
       "they see; set it"},
      {[](JobConfig& job) {
         job.model.architecture = "gpt-neo";
         job.model.attention_layers = {"global", "local"};
       },
       ""},
      {[](JobConfig& job) {
         job.model.architecture = "gpt-neo";
         job.model.rope_scaling = "linear";
       },
       "M2 model.rope_scaling: gpt-neo has no RoPE; remove it"},
      {[](JobConfig& job) {
         job.model.rope_scaling = "llama3";
         job.model.rope_scaling_high_frequency = 1.0;
       },
       "M2 model.rope_scaling_high_frequency: 1.0 is not above rope_scaling_low_frequency = 1.0; "
       "raise it"},
      {[](JobConfig& job) { job.model.document_end_token = 256; },
       "M4 model.document_end_token: 256 is outside of the vocabulary of 256; use -1, or an id "
       "below it"},
      {[](JobConfig& job) { job.model.reset_positions = true; },
       "M4 model.reset_positions: no model.document_end_token says where documents end; set it"},
      {[](JobConfig& job) { job.model.moe.topk = 3; },
       "X2 model.moe.topk: llama has no use for it; remove it"},
      {[](JobConfig& job) {
         job.model.architecture = "mixtral";
         job.model.moe.num_groups = 2;
       },
       "X2 model.moe.num_groups: mixtral has no use for it; remove it"},
      {[](JobConfig& job) {
         job.model.architecture = "qwen3-moe";
         job.model.mtp.num_layers = 1;
       },
       "X2 model.mtp.num_layers: qwen3-moe has no use for it; remove it"},
      {[](JobConfig& job) {
         job.model.architecture = "mixtral";
         job.model.moe.topk = 9;
       },
       "X1 model.moe.topk: a token can choose among 8 experts, not 9 of them; use 8 or less"},
      {[](JobConfig& job) {
         job.model.architecture = "deepseek-v3";
         job.model.moe.num_groups = 3;
       },
       "X1 model.moe.num_groups: 3 groups of 8 experts are not equal; use a divisor"},
      {[](JobConfig& job) {
         job.model.architecture = "deepseek-v3";
         job.model.moe.num_groups = 4;
         job.model.moe.group_topk = 5;
       },
       "X1 model.moe.group_topk: there are 4 groups, 5 can not be chosen; use 4 or less"},
      {[](JobConfig& job) {
         job.model.architecture = "deepseek-v3";
         job.model.moe.num_groups = 4;
         job.model.moe.topk = 3;
       },
       "X1 model.moe.topk: a token can choose among 2 experts, not 3 of them; use 2 or less"},
      {[](JobConfig& job) { job.model.moe.capacity_factor = 1.25; },
       "X2 model.moe.capacity_factor: llama has no use for it; remove it"},
      {[](JobConfig& job) {
         job.model.architecture = "mixtral";
         job.model.moe.capacity_factor = 1.25;
       },
       ""},
      {[](JobConfig& job) {
         job.model.architecture = "mixtral";
         job.model.moe.capacity_factor = 0.125;
       },
       "X4 model.moe.capacity_factor: experts would take at most 0.125 of the choices; use 0.25 "
       "or more, or 0 for all"},
      {[](JobConfig& job) {
         job.model.architecture = "deepseek-v3";
         job.model.mla.qk_rope_head_dim = 7;
       },
       "X3 model.mla.qk_rope_head_dim: RoPE turns pairs, 7 is odd; use 8"},
      {[](JobConfig& job) {
         job.model.architecture = "deepseek-v3";
         job.model.hidden_size = 250;  // heads are not cut from it
       },
       ""},
      {[](JobConfig& job) { job.model.num_positions = 100; },
       "M3 model.num_positions: 100 is less than model.sequence_length = 256; use 0, or shorter "
       "sequences"},
  };
  for (const Row& row : rows) {
    JobConfig job;
    row.change(job);
    CHECK(text_of(validate(job)) == row.error);
  }
}

TEST_CASE("settings of the trainer may be in the environment of ranks") {
  JobConfig job;
  job.runner.env = {{"SORTIE_COMM_TIMEOUT", "60"},
                    {"SORTIE_COMM_DEBUG", "1"},
                    {"SORTIE_CUDA_MODULE", "/opt/libsortie-cuda.so"},
                    {"SORTIE_TIMED_PRODUCTS", "1"}};
  CHECK(text_of(validate(job)) == "");
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

TEST_CASE("a batch ramp-up grows in equal shares and is whole for the ranks that there are") {
  const TopologyConfig topology{.micro_batch_size = 2,
                                .global_batch_size = 32,
                                .batch_rampup_start = 8,
                                .batch_rampup_increment = 8,
                                .batch_rampup_samples = 120};
  const BatchOutcome outcome = resolve_batch(topology, 4);
  REQUIRE(text_of(outcome.violations) == "");
  const BatchPlan& plan = outcome.plan;
  CHECK(batch_size_at(plan, 0) == 8);
  CHECK(batch_size_at(plan, 39) == 8);
  CHECK(batch_size_at(plan, 40) == 16);  // 120 samples over three sizes below the full one
  CHECK(batch_size_at(plan, 119) == 24);
  CHECK(batch_size_at(plan, 120) == 32);
  CHECK(batch_size_at(plan, 1'000'000) == 32);
  // 5 steps of 8, 3 of 16 (88 samples), 2 of 24 (136), then 32 each
  CHECK(samples_of_steps(plan, 5) == 40);
  CHECK(samples_of_steps(plan, 10) == 136);
  CHECK(samples_of_steps(plan, 110) == 136 + 3200);
  CHECK(steps_for_samples(plan, 40) == 5);
  CHECK(steps_for_samples(plan, 136) == 10);
  CHECK(steps_for_samples(plan, 137) == 11);
  CHECK(steps_for_samples(plan, 136 + 3200) == 110);
  CHECK(batch_error(topology, 8) ==
        "T6 topology.batch_rampup_start: 8 is no multiple of 16 = 2 (micro_batch_size) * 8 (ranks);"
        " use 16\n"
        "T6 topology.batch_rampup_increment: 8 is no multiple of 16 = 2 (micro_batch_size) * 8 "
        "(ranks); use 16");
  TopologyConfig uneven = topology;
  uneven.batch_rampup_increment = 16;
  CHECK(batch_error(uneven, 4) ==
        "T6 topology.batch_rampup_start: steps of 16 from 8 do not lead to global_batch_size = 32; "
        "use a start and an increment that do");
  CHECK(batch_size_at(resolve_batch({.micro_batch_size = 2, .global_batch_size = 32}, 4).plan, 0) ==
        32);
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
  job.data.weights = {"1", "1"};
  job.trainer.train_epochs = 2;
  job.trainer.train_iterations = 0;
  CHECK(text_of(validate_training(job)).find("D3 trainer.train_epochs: ") != std::string::npos);
  job.data.sampler = "scaling";
  CHECK(text_of(validate_training(job)) == "");
}
