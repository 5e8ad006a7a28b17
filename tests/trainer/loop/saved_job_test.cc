// Tests that a checkpoint of another model is refused, key by key, before anything is allocated,
// and that other changes are named.
#include "trainer/state/saved_job.h"

#include <dnnl.h>
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <gnu/libc-version.h>

#include <functional>

#include "common/config/architectures.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_training.h"
#include "trainer/checkpoint/find.h"
#include "trainer/state/checkpoint_state.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

using Change = std::function<void(config::JobConfig&)>;

std::vector<std::string> lines_of(const std::vector<KeyDifference>& differences) {
  std::vector<std::string> lines;
  for (const KeyDifference& difference : differences)
    lines.push_back(fmt::format("{} {} {}", difference.key, difference.saved, difference.now));
  return lines;
}

config::JobConfig changed(config::JobConfig job, const Change& change) {
  change(job);
  return job;
}

/// Trains four steps with a checkpoint in `save_dir`. Returns the job.
config::JobConfig train(
    const std::string& save_dir, const Change& change = [](auto&) {}) {
  config::JobConfig job = changed(tiny_job(), change);
  job.trainer.save_dir = save_dir;
  job.trainer.train_iterations = 4;
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator);
  REQUIRE(training.trainer->run());
  return job;
}

Manifest newest_manifest(const std::string& save_dir) {
  auto latest = find_latest(save_dir);
  REQUIRE(latest);
  REQUIRE(latest->entry);
  return std::move(*latest->entry->manifest);
}

}  // namespace

TEST_CASE("a resume into another model is refused with every key that differs") {
  const sortie::test::ScopedTempDir dir;
  const config::JobConfig job = train(dir.str("run"));
  const std::tuple<Change, const char*> cases[] = {
      {[](auto& j) { j.model.num_layers = 1; },
       "model.num_layers: the checkpoint has 2, this job 1"},
      {[](auto& j) { j.model.num_attention_heads = 2; },
       "model.num_attention_heads: the checkpoint has 4, this job 2"},
      {[](auto& j) { j.model.attention_num_kv_heads = 4; },
       "model.attention_num_kv_heads: the checkpoint has 2, this job 4"},
      {[](auto& j) { j.model.rotary_embedding_base = 500000; },
       "model.rotary_embedding_base: the checkpoint has 10000.0, this job 500000.0"},
      {[](auto& j) { j.model.rotary_percentage = 0.5; },
       "model.rotary_percentage: the checkpoint has 1.0, this job 0.5"},
      {[](auto& j) {
         j.model.rope_scaling = "linear";
         j.model.rope_scaling_factor = 2;
       },
       "model.rope_scaling_factor: the checkpoint has 1.0, this job 2.0"},
      {[](auto& j) { j.model.norm_epsilon = 1e-6; },
       "model.norm_epsilon: the checkpoint has 1e-05, this job 1e-06"},
      {[](auto& j) { j.model.architecture = "mistral"; },
       "model.architecture: the checkpoint has \"llama\", this job \"mistral\""},
      {[](auto& j) { j.model.weight_tying = false; },
       "model.weight_tying: the checkpoint has true, this job false"},
      {[](auto& j) { j.model.vocab_size = 51; },
       "model.vocab_size: the checkpoint has 50, this job 51"},
      {[](auto& j) { j.lora.rank = 2; }, "lora.rank: the checkpoint has 0, this job 2"}};
  for (const auto& [change, line] : cases) {
    const std::string refused = start_error(changed(job, change));
    CAPTURE(refused);
    CHECK(refused.starts_with(dir.str("run/step-00000004") +
                              ": it is a checkpoint of another model:\n"));
    CHECK(refused.find(std::string("\n  ") + line + "\n") != std::string::npos);
    CHECK(refused.find("set trainer.save_dir to a new folder") != std::string::npos);
    const bool hints_at_model = refused.find(" checkpoint model ") != refused.npos;
    CHECK(hints_at_model == std::string(line).starts_with("model."));
  }
  // All differences at once. A model that would not fit into any memory is refused, too.
  config::JobConfig giant = job;
  giant.trainer.load_dir = job.trainer.save_dir;
  giant.trainer.save_dir.clear();
  giant.model.vocab_size = 2'000'000'000;
  giant.model.ffn_hidden_size = 1 << 24;
  const std::string refused = start_error(giant);
  CHECK(refused.find("model.vocab_size: the checkpoint has 50, this job 2000000000") !=
        std::string::npos);
  CHECK(refused.find("model.ffn_hidden_size: the checkpoint has 128, this job 16777216") !=
        std::string::npos);
  CHECK(refused.ends_with("or remove trainer.load_dir"));
  std::swap(giant.trainer.load_dir, giant.trainer.load_weights_from);
  CHECK(start_error(giant).ends_with("or remove trainer.load_weights_from"));
}

TEST_CASE("one model in other words, and what only matters in training, is no other model") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = train(dir.str("run"));
  job.model.head_dim = 12;
  job.model.ffn_hidden_size = 128;
  job.model.init_std = 0.5;
  job.model.sequence_length = 17;
  job.model.num_positions = 40;
  job.model.rope_scaling_factor = 8;  // rope_scaling = "none" does not read it
  job.model.residual_dropout = 0.1;
  job.trainer.train_iterations = 6;
  CHECK(start_error(job) == "none");

  config::JobConfig gpt_neo = tiny_job("gpt-neo");
  gpt_neo.model.attention_num_kv_heads = 4;
  gpt_neo.model.rotary_percentage = 1.0;
  const auto differ = [&](const Change& change) {
    return lines_of(model_differences(gpt_neo, changed(gpt_neo, change)));
  };
  CHECK(differ([](auto& j) {
          j.model.attention_layers = {"global", "local"};
          j.model.attention_window = 256;
        }).empty());
  CHECK(differ([](auto& j) { j.model.attention_window = 128; }) ==
        std::vector<std::string>{"model.attention_window 256 128"});
  CHECK(differ([](auto& j) { j.model.num_layers = 4; }) ==
        std::vector<std::string>{"model.num_layers 2 4"});
  // A learned table of positions has that many rows.
  CHECK(differ([](auto& j) { j.model.sequence_length = 21; }) ==
        std::vector<std::string>{"model.num_positions 19 21"});
}

TEST_CASE("every preset differs from every other one, and not from itself") {
  for (const config::Preset& one : config::presets())
    for (const config::Preset& other : config::presets()) {
      config::JobConfig a, b;
      a.model = one.model;
      b.model = other.model;
      CAPTURE(one.name);
      CAPTURE(other.name);
      CHECK(model_differences(a, b).empty() == (one.name == other.name));
    }
}

TEST_CASE("low-rank updates belong to the model") {
  const sortie::test::ScopedTempDir dir;
  const config::JobConfig base = train(dir.str("base"));
  const auto with_lora = [](config::JobConfig& job) {
    job.lora.rank = 2;
    job.lora.alpha = 4;
  };
  const config::JobConfig job = train(dir.str("lora"), with_lora);
  CHECK(start_error(changed(job, [](auto& j) {
          j.lora.alpha = 8;
        })).find("lora.alpha: the checkpoint has 4.0, this job 8.0") != std::string::npos);
  config::JobConfig plain = base;
  plain.trainer.save_dir.clear();
  for (std::string* key : {&plain.trainer.load_dir, &plain.trainer.load_weights_from}) {
    *key = dir.str("lora");
    const std::string refused = start_error(plain);
    CHECK(refused.find("lora.rank: the checkpoint has 2, this job 0") != std::string::npos);
    CHECK(refused.ends_with("`sortie-train merge-lora` makes plain weights of low-rank updates"));
    key->clear();
  }
  // Low-rank updates may start on weights that had none.
  config::JobConfig begun = changed(base, with_lora);
  begun.trainer.save_dir.clear();
  begun.trainer.load_weights_from = dir.str("base");
  CHECK(start_error(begun) == "none");
}

TEST_CASE("what makes a resumed run differ in bits is named by key") {
  const sortie::test::ScopedTempDir dir;
  const config::JobConfig job = train(dir.str("run"));
  const Manifest manifest = newest_manifest(dir.str("run"));
  BitFacts facts;
  facts.isa = cpu_facts().isa;
  facts.build = "test-build";
  facts.mpi = "none";
  facts.data = "progression";
  facts.precision = "f32";
  facts.libm = std::string("glibc ") + gnu_get_libc_version();
  const dnnl_version_t& onednn = *dnnl_version();
  facts.onednn = fmt::format("{}.{}.{} {}", onednn.major, onednn.minor, onednn.patch, onednn.hash);
  const auto changes = [&](const BitFacts& is, const config::JobConfig& now) {
    auto found = changes_since(manifest, dir / "run/step-00000004", is, now);
    REQUIRE_MESSAGE(found, (found ? "" : found.error().message));
    return *found;
  };
  CHECK(changes(facts, job).empty());

  config::JobConfig longer = job;
  longer.trainer.train_duration = std::chrono::hours(1);
  longer.trainer.save_interval = 1;
  longer.logger.log_interval = 5;
  longer.data.data_prefixes = {"/moved"};           // the samples are the same
  longer.topology.gradient_accumulation_steps = 4;  // 8 = 2 * 4, as before
  longer.data.weights = {"1"};
  longer.data.validation_sets["own"] = "/validation";
  longer.topology.activation_checkpointing_type = "every_layer";
  CHECK(changes(facts, longer).empty());
  longer.trainer.train_iterations = 9;
  CHECK(changes(facts, longer) ==
        std::vector<std::string>{"learning_rate_scheduler.learning_rate_decay_iters: was 4, is 9"});

  // The same rounds in other words, over other connections.
  config::JobConfig over_sites = job;
  over_sites.runner.hosts = {"a site=oslo", "b site=rome"};
  over_sites.outer.every = 5;
  config::JobConfig on_another_way = over_sites;
  on_another_way.topology.gradient_compression = "medium";  // auto, for several sites
  on_another_way.outer.route = "launcher";
  on_another_way.outer.port = 51000;
  on_another_way.outer.streams = 1;
  CHECK(course_differences({over_sites}, {on_another_way}, false).empty());
  on_another_way.outer.wire = "bf16";
  on_another_way.topology.gradient_compression = "weak";
  CHECK(lines_of(course_differences({over_sites}, {on_another_way}, false)) ==
        std::vector<std::string>{"topology.gradient_compression \"medium\" \"low\"",
                                 "outer.wire \"auto\" \"bf16\""});

  config::JobConfig other = job;
  other.optimizer.weight_decay = 0.05;
  other.trainer.seed = 43;
  other.model.residual_dropout = 0.1;
  other.topology.micro_batch_size = 4;
  CHECK(changes(facts, other) ==
        std::vector<std::string>{"topology.micro_batch_size: was 2, is 4",
                                 "topology.gradient_accumulation_steps: was 4, is 2",
                                 "optimizer.weight_decay: was 0.1, is 0.05",
                                 "trainer.seed: was 42, is 43",
                                 "model.residual_dropout: was 0.0, is 0.1"});

  BitFacts elsewhere = facts;
  elsewhere.threads = 3;
  elsewhere.build = "another";
  elsewhere.libm = "glibc 1.0";
  elsewhere.data = "other";
  CHECK(changes(elsewhere, job) ==
        std::vector<std::string>{
            "training data: other samples than before", "build: another one of sortie-train",
            "libm: was " + facts.libm + ", is glibc 1.0", "threads: was 1, is 3"});
  BitFacts on_other_data = facts;
  on_other_data.data = "other";
  config::JobConfig other_data = job;
  other_data.data.data_prefixes = {"/other"};
  const auto named = changes(on_other_data, other_data);
  REQUIRE(named.size() == 2);
  CHECK(named[0] == "training data: other samples than before");
  CHECK(named[1].starts_with("data.data_prefixes: was "));

  BitFacts in_other_order = facts;
  in_other_order.order = "2 epochs, shuffled together";
  CHECK(changes(in_other_order, job) ==
        std::vector<std::string>{
            "order of samples: was not recorded, is 2 epochs, shuffled together"});

  // Variables of NCCL that order its sums differently. A checkpoint without them is of one GPU, or
  // older.
  BitFacts on_gpus = facts;
  on_gpus.gpu = "NVIDIA H200";
  on_gpus.gpu_libraries = "CUDA 13.0";
  Manifest of_gpus = manifest;
  const auto after = [&](const std::string& was, const std::string& is) {
    BitFacts now = on_gpus;
    on_gpus.sum_settings = was;
    now.sum_settings = is;
    of_gpus.depends_on = depends_on(on_gpus);
    return changes_since(of_gpus, dir / "run/step-00000004", now, job).value();
  };
  CHECK(after("NCCL_NVLS_ENABLE=0", "NCCL_ALGO=Tree") ==
        std::vector<std::string>{"settings of NCCL: was NCCL_NVLS_ENABLE=0, is NCCL_ALGO=Tree"});
  CHECK(after("NCCL_ALGO=Tree", "NCCL_ALGO=Tree").empty());
  CHECK(after("", "NCCL_NVLS_ENABLE=0").empty());
  CHECK(after("NCCL_NVLS_ENABLE=0", "").empty());

  // What older versions recorded: a hash of the config, and the library version that they were
  // compiled against.
  Manifest older = manifest;
  older.depends_on = {{"isa", facts.isa},
                      {"libraries", "oneDNN " + facts.onednn},
                      {"build", "test-build"},
                      {"threads", "1"},
                      {"ranks", "1"},
                      {"precision", "f32"},
                      {"training config", "9c1d"}};
  const auto since = changes_since(older, dir / "run/step-00000004", facts, other);
  REQUIRE(since);
  CHECK(since->front() == "MPI: was not recorded, is none");
  CHECK(since->back() == "model.residual_dropout: was 0.0, is 0.1");
  CHECK(std::ranges::find(*since, "instruction set: was not recorded") == since->end());
}
