#include "common/config/load.h"

#include <doctest/doctest.h>
#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "common/base/atomic_file.h"
#include "common/config/architectures.h"
#include "common/config/fields.h"
#include "common/config/text.h"
#include "tests/common/config/load_errors.h"

using namespace sortie;
using namespace sortie::config;
using namespace sortie::test;

namespace {

/// A value for a key of [runner.container] whose text must have a particular form; empty for all
/// other keys.
std::string container_change(std::string_view key) {
  const std::map<std::string_view, std::string> changes = {{"engine", "podman"}, {"image", "t:1"},
                                                           {"shm_size", "2GiB"}, {"memory", "2GiB"},
                                                           {"ipc", "private"},   {"workdir", "/w"}};
  constexpr std::string_view kPrefix = "runner.container.";
  if (!key.starts_with(kPrefix)) return {};
  const auto found = changes.find(key.substr(kPrefix.size()));
  return found == changes.end() ? "" : found->second;
}

/// Sets `field` to an allowed value other than its default, by its type and rule.
void change(const Field& field, JobConfig& job) {
  const Slot slot = field.slot(job);
  ContainerConfig& container = job.runner.container;
  if (field.key == "runner.container.mounts") {
    container.mounts = {{"/a", "/b"}, {"/c \"d\"", "/d", "ro"}};
    return;
  }
  if (field.key == "runner.container.ulimits") {
    container.ulimits = {{"core", "0"}, {"cpu", "1:2"}};
    return;
  }
  if (field.key == "runner.container.devices") {
    container.devices = {"/dev/a", "/dev/b:/dev/c:r"};
    return;
  }
  if (field.key == "runner.container.capabilities") {
    container.capabilities = {"KILL", "CAP_MKNOD"};
    return;
  }
  if (field.key == "runner.container.extra_args") {
    container.extra_args = {"--one", "two"};
    return;
  }
  if (auto* const* value = std::get_if<bool*>(&slot)) **value = !**value;
  if (auto* const* value = std::get_if<std::int64_t*>(&slot))
    **value = **value == std::get<IntegerRange>(field.rule).max ? **value - 1 : **value + 1;
  if (auto* const* value = std::get_if<double*>(&slot)) {
    const auto& range = std::get<NumberRange>(field.rule);
    **value = (**value + (**value == range.max ? range.min : range.max)) / 2 + 1e-17;
  }
  if (auto* const* value = std::get_if<Milliseconds*>(&slot)) **value += Milliseconds(1);
  if (auto* const* value = std::get_if<std::vector<std::string>*>(&slot))
    **value = field.key == "model.attention_layers" ? std::vector<std::string>{"global", "local"}
              : field.key == "data.weights"         ? std::vector<std::string>{"1", "0.5"}
              : field.key == "optimizer.training_groups"
                  ? std::vector<std::string>{"one include=a.*", "two include=b.* weight_decay=0"}
              : field.key == "recovery.restart_on" || field.key == "recovery.counted"
                  ? std::vector<std::string>{"hang", "oom"}
              : field.key == "runner.transport"
                  ? std::vector<std::string>{"docker", "exec", "-i", "{host}"}
              : field.key == "topology.pipeline_stage_layers"
                  ? std::vector<std::string>{"1", "2", "3", "2"}
              : field.key.ends_with("_exit_codes") ? std::vector<std::string>{"7", "64-69"}
                                                   : std::vector<std::string>{"one", "two"};
  if (auto* const* value = std::get_if<std::map<std::string, std::string>*>(&slot))
    **value = {{"A", "quote \" backslash \\ newline \n tab \t bell \a"}, {"B", ""}};
  if (auto* const* value = std::get_if<std::string*>(&slot)) {
    if (const auto* choices = std::get_if<Choices>(&field.rule))
      **value = **value == choices->words.front() ? choices->words.back() : choices->words.front();
    else if (field.key == "data.tokenizer")
      **value = "sentencepiece:/m";
    else if (field.key == "trainer.on_replica_mismatch")
      **value = "rollback 3";
    else if (field.key.starts_with("trainer.on_"))
      **value = "stop";
    else if (field.key == "model.preset")
      **value = "gpt2-124m";
    else if (const std::string text = container_change(field.key); !text.empty())
      **value = text;
    else
      **value = field.key == "runner.on_launcher_loss" ? "hold 7s" : "changed";
  }
}

}  // namespace

TEST_CASE("an empty config is the default job and has no origins") {
  const auto loaded = load_job_text("", "job.toml");
  REQUIRE(loaded);
  CHECK(to_toml(loaded->job) == to_toml(JobConfig{}));
  CHECK(loaded->origins.empty());
}

TEST_CASE("a quoted text has no character that a terminal obeys, and TOML reads the same text") {
  for (const auto& [text, quoted] : std::vector<std::pair<std::string, std::string>>{
           {"caf\u00e9 \U0001f600", "\"caf\u00e9 \U0001f600\""},
           {"a\x1b\x7f\n\t\"", R"("a\u001B\u007F\n\t\"")"},
           {"a\xc2\x9b", R"("a\u009B")"},
           {"a\u202e\u2028\ufeff", R"("a\u202E\u2028\uFEFF")"},
           {"a\U000e0041", R"("a\U000E0041")"}}) {
    CHECK(quote(text) == quoted);
    const auto loaded = load_job_text("[runner]\nprogram = [" + quote(text) + "]\n", "job.toml");
    REQUIRE(loaded);
    CHECK(loaded->job.runner.program.at(0) == text);
  }
  CHECK(quote("a\xff") == "\"a\ufffd\"");
}

TEST_CASE("each key loads alone, from the file and from --set, and is the only one that changes") {
  // Rules over several keys forbid changing these alone; the round trip below covers them.
  const std::set<std::string_view> needs_company = {"learning_rate_scheduler.learning_rate_minimum",
                                                    "learning_rate_scheduler.wsd_decay_steps",
                                                    "learning_rate_scheduler.wsd_decay_style",
                                                    "trainer.save_interval",
                                                    "trainer.eval_interval",
                                                    "trainer.on_replica_mismatch",
                                                    "trainer.scrub_interval",
                                                    "trainer.memory_checkpoint_interval",
                                                    "recovery.slow_swaps",
                                                    "topology.sequence_parallel",
                                                    "topology.pipeline_interleave",
                                                    "topology.pipeline_schedule",
                                                    "topology.pipeline_stage_layers",
                                                    "topology.expert_parallel_size",
                                                    "topology.expert_tensor_parallel_size",
                                                    "topology.batch_rampup_start",
                                                    "topology.batch_rampup_increment",
                                                    "topology.batch_rampup_samples",
                                                    "outer.block",
                                                    "optimizer.momentum",
                                                    "optimizer.chunk",
                                                    "optimizer.top_k",
                                                    "model.fp8_scaling",
                                                    "model.hidden_size",
                                                    "model.num_attention_heads",
                                                    "model.head_dim",
                                                    "model.num_positions",
                                                    "model.reset_positions",
                                                    "model.attention_layers",
                                                    "model.attention_window"};
  for (const Field& field : fields()) {
    CAPTURE(field.key);
    if (field.key == "model.preset") continue;  // changes many keys; see below
    JobConfig job;
    change(field, job);
    const std::string text = value_text(field, job);
    CHECK(text != default_text(field));
    CHECK(check_value(field, job) == "");
    const std::string file =
        fmt::format("[{}]\n{} = {}\n", section_of(field), name_of(field), text);
    const auto from_file = load_job_text(file, "job.toml");
    const bool others =
        section_of(field) == "runner.container" || section_of(field).starts_with("model.");
    if (needs_company.contains(field.key) || others) {
      CHECK_FALSE(from_file);
      continue;
    }
    REQUIRE_MESSAGE(from_file, (from_file ? "" : from_file.error().message));
    CHECK(to_toml(from_file->job) == to_toml(job));
    CHECK(from_file->origins.size() == 1);
    CHECK(from_file->origins.at(std::string(field.key)).starts_with("job.toml:2:"));
    const auto from_set = load_job_text("", "job.toml", {fmt::format("{}={}", field.key, text)});
    REQUIRE(from_set);
    CHECK(to_toml(from_set->job) == to_toml(job));
    CHECK(from_set->origins.at(std::string(field.key)) == "--set");
  }
}

TEST_CASE("a job with every key changed comes back from its own TOML") {
  JobConfig job;
  for (const Field& field : fields()) change(field, job);
  // Values that the rules over several keys require. "below" marks keys that are tested with
  // another job further down.
  job.runner.hosts_file.clear();
  job.runner.ssh.command.clear();
  job.runner.ssh.persist = {};
  job.runner.network.tunnel = "none";  // below
  job.trainer.load_weights_from.clear();
  job.trainer.memory_checkpoint_interval = 0;  // below
  job.runner.secret_env = {{"C", "(secret)"}};
  job.runner.container.env = {{"D", "quote \""}};
  job.runner.container.workdir.clear();
  job.topology = {.data_parallel_size = 2,
                  .tensor_parallel_size = 2,
                  .sequence_parallel = true,
                  .context_parallel_size = 2,
                  .pipeline_parallel_size = 2,
                  .pipeline_interleave = 2,
                  .pipeline_stage_layers = {"1", "2", "3", "2"},
                  .parameter_sharding = "optimizer",
                  .micro_batch_size = 3,
                  .gradient_accumulation_steps = 4,
                  .global_batch_size = 24,
                  .activation_checkpointing_type = "every_layer",
                  .backend = "mpi",
                  .gradient_compression = "low",
                  .batch_rampup_start = 12,
                  .batch_rampup_increment = 12,
                  .batch_rampup_samples = 100};
  job.outer.block = 48;
  job.optimizer.name = "adamw";  // DeMo below
  job.optimizer.momentum = OptimizerConfig{}.momentum;
  job.optimizer.chunk = OptimizerConfig{}.chunk;
  job.optimizer.top_k = OptimizerConfig{}.top_k;
  job.learning_rate_scheduler.learning_rate = 6.0;
  job.learning_rate_scheduler.learning_rate_decay_style = "warmup-stable-decay";
  job.learning_rate_scheduler.learning_rate_decay_iters = 100;
  job.model.fp8_scaling = "current";  // delayed below
  job.model.num_layers = 8;
  job.model.hidden_size = 64;
  job.model.num_attention_heads = 2;
  job.model.attention_num_kv_heads = 2;
  job.model.head_dim = 16;
  job.model.ffn_hidden_size = 128;
  job.model.sequence_length = 64;
  job.model.num_positions = 512;
  // The architecture with the most keys. It rotates whole heads, so rotary_percentage must be 1.
  job.model.architecture = "mistral";
  job.model.rotary_percentage = 1.0;
  job.model.moe = {};  // below
  job.model.mla = {};
  job.model.mtp = {};
  const std::string text = to_toml(job);
  const auto loaded = load_job_text(text, "job.toml");
  REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
  for (const Field& field : fields()) {
    CAPTURE(field.key);
    CHECK(value_text(field, loaded->job) == value_text(field, job));
    const bool as_before =
        field.key == "runner.hosts_file" || field.key == "runner.container.workdir" ||
        field.key == "runner.network.tunnel" || field.key == "runner.ssh.command" ||
        field.key == "runner.ssh.persist" || field.key == "model.rotary_percentage" ||
        field.key == "trainer.load_weights_from" ||
        field.key == "trainer.memory_checkpoint_interval" || field.key == "optimizer.name" ||
        field.key == "optimizer.momentum" || field.key == "optimizer.chunk" ||
        field.key == "optimizer.top_k" ||             // needs DeMo, below
        field.key == "model.fp8_scaling" ||           // needs no rounds between sites, below
        field.key == "topology.pipeline_schedule" ||  // needs stages without interleaving, below
        field.key.starts_with("topology.expert_") ||  // needs a model with experts, below
        section_of(field).starts_with("model.");
    if (!as_before) CHECK(value_text(field, job) != default_text(field));
  }
  CHECK(to_toml(loaded->job) == text);
  CHECK(loaded->job.runner.env == job.runner.env);
  job.topology = {};
  job.trainer.memory_checkpoint_interval = 7;
  job.runner.transport.clear();
  job.runner.ssh.persist = std::chrono::seconds(7);
  job.runner.network.interface.clear();
  job.runner.network.tunnel = "wireguard";
  job.runner.master_addr.clear();
  job.runner.allow_same_machine = false;
  job.runner.container.network = "host";
  const auto with_memory = load_job_text(to_toml(job), "job.toml");
  REQUIRE_MESSAGE(with_memory, (with_memory ? "" : with_memory.error().message));
  CHECK(with_memory->job.trainer.memory_checkpoint_interval == 7);
  CHECK(with_memory->job.runner.ssh.persist == std::chrono::seconds(7));
  CHECK(with_memory->job.runner.network.tunnel == "wireguard");
  JobConfig demo;
  for (const Field& field : fields())
    for (const char* key :
         {"optimizer.name", "optimizer.momentum", "optimizer.chunk", "optimizer.top_k"})
      if (field.key == key) change(field, demo);
  demo.topology.pipeline_parallel_size = 2;
  demo.topology.pipeline_schedule = "zero_bubble";
  demo.model.precision = "fp8";
  demo.model.fp8_scaling = "delayed";
  const auto of_demo = load_job_text(to_toml(demo), "job.toml");
  REQUIRE_MESSAGE(of_demo, (of_demo ? "" : of_demo.error().message));
  const OptimizerConfig& back = of_demo->job.optimizer;
  CHECK(back.name == "demo");
  CHECK(of_demo->job.topology.pipeline_schedule == "zero_bubble");
  CHECK(of_demo->job.model.fp8_scaling == "delayed");
  CHECK(back.momentum == demo.optimizer.momentum);
  CHECK((back.momentum != 0.999 && back.chunk != 64 && back.top_k != 32));
  CHECK((back.chunk == demo.optimizer.chunk && back.top_k == demo.optimizer.top_k));
}

TEST_CASE("every key of mixtures comes back from the TOML of an architecture that reads it") {
  JobConfig deepseek, qwen;
  deepseek.model.architecture = "deepseek-v3";
  qwen.model.architecture = "qwen3-moe";
  for (const Field& field : fields())
    if (section_of(field).starts_with("model.")) change(field, deepseek);
  deepseek.model.moe.num_experts = 10;
  deepseek.topology.expert_parallel_size = 5;
  deepseek.topology.expert_tensor_parallel_size = 1;
  deepseek.model.mla.qk_rope_head_dim = 62;
  deepseek.model.moe.layer_step = 1;
  deepseek.model.moe.aux_loss_coeff = 0.0;
  qwen.model.moe.layer_step = 2;
  qwen.model.moe.aux_loss_coeff = 0.01;
  for (const JobConfig* job : {&deepseek, &qwen}) {
    const auto loaded = load_job_text(to_toml(*job), "job.toml");
    REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
    CHECK(to_toml(loaded->job) == to_toml(*job));
  }
  for (const Field& field : fields())
    if (section_of(field).starts_with("model.")) {
      CAPTURE(field.key);
      CHECK((value_text(field, deepseek) != default_text(field) ||
             value_text(field, qwen) != default_text(field)));
    }
}

TEST_CASE("a preset comes before the other keys, wherever it stands") {
  const std::string text = "[model]\nnum_layers = 3\npreset = \"pythia-70m\"\n";
  const auto loaded = load_job_text(text, "job.toml");
  REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
  const ModelConfig& model = loaded->job.model;
  CHECK(model.architecture == "gpt-neo-x");
  CHECK(model.hidden_size == 512);
  CHECK(model.rotary_percentage == 0.25);
  CHECK(model.num_layers == 3);
  CHECK(loaded->origins.at("model.num_layers") == "job.toml:2:14");
  CHECK(loaded->origins.at("model.hidden_size") == "preset pythia-70m");
  const auto mixture = load_job_text("[model]\npreset = \"openseek-small\"\n", "job.toml");
  REQUIRE_MESSAGE(mixture, (mixture ? "" : mixture.error().message));
  CHECK(mixture->origins.at("model.moe.num_experts") == "preset openseek-small");
  CHECK(mixture->origins.at("model.moe.topk") == "preset openseek-small");
  CHECK(load_job_text(to_toml(loaded->job), "again").value().job.model.num_layers == 3);
  // --set of the preset or of a key overrides the file.
  const auto other = load_job_text(text, "job.toml", {"model.preset=gpt2-124m"});
  REQUIRE_MESSAGE(other, (other ? "" : other.error().message));
  CHECK(other->job.model.architecture == "gpt2");
  CHECK(other->job.model.num_layers == 3);
  CHECK(errors_of("[model]\npreset = \"gpt2\"\n")
            .starts_with("job.toml:2:10: model.preset: \"gpt2\" is no preset; use gpt2-124m, "));
}

TEST_CASE("every preset is a valid model") {
  for (const Preset& preset : presets()) {
    CAPTURE(preset.name);
    const auto loaded =
        load_job_text("", "job.toml", {fmt::format("model.preset={}", preset.name)});
    REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
    CHECK(loaded->job.model.preset == preset.name);
  }
}

TEST_CASE("bytes that are no UTF-8 do not break the TOML of a job") {
  JobConfig job;
  job.runner.program = {"a", "\xff\xc3(\xed\xa0\x80 \xf0\x9f\x8c\x8d"};
  const auto loaded = load_job_text(to_toml(job), "job.toml");
  REQUIRE(loaded);
  CHECK(loaded->job.runner.program[1] == "\ufffd\ufffd(\ufffd\ufffd\ufffd \U0001F30D");
}

TEST_CASE("origins name file, line and column, and --set") {
  const auto loaded = load_job_text("[runner]\n  mpi = \"on\"\n[runner.ssh]\nport = 22\n", "j.toml",
                                    {"runner.ssh.port=2222", "model.precision=f32"});
  REQUIRE(loaded);
  CHECK(loaded->origins == Origins{{"runner.mpi", "j.toml:2:9"},
                                   {"runner.ssh.port", "--set"},
                                   {"model.precision", "--set"}});
  CHECK(loaded->job.runner.ssh.port == 2222);
  CHECK(loaded->job.model.precision == "f32");
}

TEST_CASE("load_job reads a file and names it in messages") {
  char folder_name[] = "/tmp/sortie-test-XXXXXX";
  REQUIRE(mkdtemp(folder_name) != nullptr);
  const std::filesystem::path file = std::filesystem::path(folder_name) / "job.toml";
  REQUIRE(write_file_atomic(file, "[model]\nnum_layers = 2\n"));
  CHECK(load_job(file).value().job.model.num_layers == 2);
  CHECK(load_job(file).value().origins.at("model.num_layers") == file.string() + ":2:14");
  std::filesystem::remove_all(folder_name);
}

TEST_CASE("paths get absolute against the base and the home folder, words do not") {
  JobConfig job;
  job.trainer.save_dir = "ckpt/../out";
  job.trainer.load_dir = "/abs";
  job.runner.ssh.identity_file = "~/.ssh/key";
  job.data.data_prefixes = {"a", "~/b"};
  job.data.tokenizer = "sentencepiece:m.model";
  resolve_paths(job, "/work", "/home/u");
  CHECK(job.trainer.save_dir == "/work/out");
  CHECK(job.trainer.load_dir == "/abs");
  CHECK(job.runner.ssh.identity_file == "/home/u/.ssh/key");
  CHECK(job.data.data_prefixes == std::vector<std::string>{"/work/a", "/home/u/b"});
  CHECK(job.data.tokenizer == "sentencepiece:/work/m.model");
  job.data.validation_sets = {{"wiki", "~/wiki"}, {"code", "code"}};
  job.data.tokenizer = "hf:~/tokenizer.json";
  resolve_paths(job, "/work", "/home/u");
  CHECK(job.data.tokenizer == "hf:/home/u/tokenizer.json");
  CHECK(job.data.validation_sets.at("wiki") == "/home/u/wiki");
  CHECK(job.data.validation_sets.at("code") == "/work/code");
  CHECK(job.logger.log_dir == "");
  const JobConfig once = job;
  resolve_paths(job, "/other", "/other");
  CHECK(to_toml(job) == to_toml(once));
  JobConfig words;
  words.trainer.save_dir = "byte";
  resolve_paths(words, "/work", "/home/u");
  CHECK(words.trainer.save_dir == "/work/byte");
  CHECK(words.data.tokenizer == "");
}
