// Rules of [topology], [trainer], [optimizer] and the other sections of a training.
#include "tests/common/config/broken_rules.h"

using namespace sortie::config;
using namespace sortie::test;

TEST_CASE("each rule of training names the numbers and what to do") {
  const BrokenRule rows[] = {
      {[](JobConfig& job) { job.topology = {.micro_batch_size = 4, .global_batch_size = 30}; },
       "T4 topology.global_batch_size: 30 is no multiple of 4 (micro_batch_size), so no "
       "number of replicas fits; use a multiple of 4 times the number of replicas"},
      {[](JobConfig& job) {
         job.topology = {
             .micro_batch_size = 4, .gradient_accumulation_steps = 2, .global_batch_size = 30};
       },
       "T4 topology.global_batch_size: 30 is no multiple of 8 = 4 (micro_batch_size) * 2 "
       "(gradient_accumulation_steps), so no number of replicas fits; use a multiple of 8 times "
       "the number of replicas"},
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
      {[](JobConfig& job) { job.learning_rate_scheduler.wsd_decay_steps = 10; },
       "L2 learning_rate_scheduler.wsd_decay_steps: learning_rate_decay_style = \"cosine\" does "
       "not "
       "read it; remove it, or set learning_rate_decay_style = \"warmup-stable-decay\""},
      {[](JobConfig& job) { job.learning_rate_scheduler.wsd_decay_style = "cosine"; },
       "L2 learning_rate_scheduler.wsd_decay_style: learning_rate_decay_style = \"cosine\" does "
       "not "
       "read it; remove it, or set learning_rate_decay_style = \"warmup-stable-decay\""},
      {[](JobConfig& job) {  // a group reads it
         job.learning_rate_scheduler.wsd_decay_steps = 10;
         job.optimizer.training_groups = {
             "a include=a learning_rate_decay_style=warmup-stable-decay"};
       },
       ""},
      {[](JobConfig& job) { job.optimizer.training_groups = {"a include=a wsd_decay_steps=10"}; },
       "O1 optimizer.training_groups: group a: learning_rate_scheduler.wsd_decay_steps: "
       "learning_rate_decay_style = \"cosine\" does not read it; remove it, or set "
       "learning_rate_decay_style = \"warmup-stable-decay\""},
      {[](JobConfig& job) {  // the number of steps in three epochs is not known yet
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
         job.trainer.on_nonfinite = "rollback 11";  // from step 21 to 10; 10 and 20 exist
       },
       ""},
      {[](JobConfig& job) {
         job.trainer.save_dir = "/c";
         job.trainer.save_interval = 10;
         job.trainer.keep_last = 2;
         job.trainer.on_nonfinite = "rollback 12";  // from step 31 to 19; 20 and 30 exist
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
         job.model.precision = "fp8";
         job.trainer.device = "cpu";
       },
       "C10 model.precision: \"fp8\" needs GPUs of compute capability 8.9 or newer; set "
       "trainer.device = \"cuda\", or model.precision = \"bf16\""},
      {[](JobConfig& job) { job.model.fp8_scaling = "delayed"; },
       "C11 model.fp8_scaling: \"delayed\" is a scaling of products in FP8, and there are none; "
       "set "
       "model.precision = \"fp8\", or remove it"},
      {[](JobConfig& job) {
         job.model.precision = "fp8";
         job.model.fp8_scaling = "delayed";
         job.topology.gradient_compression = "medium";
       },
       "C12 model.fp8_scaling: checkpoints in memory and rounds between sites do not have the "
       "state "
       "of \"delayed\" scaling; use \"current\""},
      {[](JobConfig& job) {
         job.model.precision = "fp8";
         job.model.fp8_scaling = "delayed";
         job.outer.every = 4;
       },
       "C12 model.fp8_scaling: checkpoints in memory and rounds between sites do not have the "
       "state "
       "of \"delayed\" scaling; use \"current\""},
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
         job.optimizer.moments = "bf16";
       },
       "O2 optimizer.moments: optimizer.name = \"demo\" has no such setting; remove it, or set "
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
       ""},
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
  };
  check_rules(rows);
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

TEST_CASE("D6: keys of token files are not set for conversations, nor the other way") {
  JobConfig job;
  job.data.chat_files = {"/a.jsonl"};
  job.data.tokenizer = "byte";
  job.data.pack_conversations = false;
  CHECK(text_of(validate_training(job)) == "");
  job.data.sampler = "megatron";
  CHECK(text_of(validate_training(job)) ==
        "D6 data.sampler: \"megatron\" is an order of token files, and conversations are shuffled "
        "anew in every epoch; remove it");
  job.data.sampler = "sortie";
  job.data.chat_files.clear();
  job.data.data_prefixes = {"/a"};
  CHECK(text_of(validate_training(job)) ==
        "D6 data.pack_conversations: there are no conversations to pack, because data.chat_files "
        "is empty; remove it");
}
