// Errors in a job's text and in --set: locations, names and suggestions.
#include <fmt/core.h>

#include "tests/common/config/load_errors.h"

using namespace sortie;
using namespace sortie::config;
using namespace sortie::test;

TEST_CASE("all problems are reported at once, sorted by position") {
  CHECK(errors_of("[trainer]\n"
                  "seed = \"x\"\n"
                  "save_intervall = 3\n"
                  "[runner.ssh]\n"
                  "port = 70000\n"
                  "connect_timeout = 30\n"
                  "[topologie]\n"
                  "x = 1\n"
                  "[model]\n"
                  "hidden_size = 100\n"
                  "num_attention_heads = 3\n",
                  {"runner.mpi=sometimes", "nonsense"}) ==
        "job.toml:2:8: trainer.seed: must be a whole number, not \"x\"; use 0 to "
        "9223372036854775807\n"
        "job.toml:3:1: unknown key trainer.save_intervall; did you mean trainer.save_interval?\n"
        "job.toml:3:18: trainer.save_interval: 3 asks for checkpoints, but trainer.save_dir is "
        "empty; set it\n"
        "job.toml:5:8: runner.ssh.port: 70000 is out of range; use 0 to 65535\n"
        "job.toml:6:19: runner.ssh.connect_timeout: 30 has no unit; write \"30s\", or with ms, m "
        "or h\n"
        "job.toml:7:2: unknown section [topologie]; did you mean [topology]?\n"
        "job.toml:8:1: unknown key topology.x; `sortie config init --all` prints all keys\n"
        "job.toml:10:15: model.hidden_size: 100 is no multiple of model.num_attention_heads = 3; "
        "use 99 or 102, or set model.head_dim\n"
        "--set runner.mpi=sometimes: runner.mpi: \"sometimes\" is not one of auto | on | off; "
        "write one of them\n"
        "--set nonsense: has no '='; write --set key=value");
}

TEST_CASE(
    "an unknown name near an existing one is judged as that one, and hides no other problem") {
  // The intended key counts as set: no rule reports it as missing.
  CHECK(errors_of("[trainer]\nsave_dirr = \"/x\"\nsave_interval = 5\n") ==
        "job.toml:2:1: unknown key trainer.save_dirr; did you mean trainer.save_dir?");
  // The value given for the misspelled key breaks a rule: both errors are reported.
  CHECK(errors_of("[model]\nhiden_size = 100\nnum_attention_heads = 3\n") ==
        "job.toml:2:1: unknown key model.hiden_size; did you mean model.hidden_size?\n"
        "job.toml:2:14: model.hidden_size: 100 is no multiple of model.num_attention_heads = 3; "
        "use 99 or 102, or set model.head_dim");
  // The value has the wrong type for the intended key: rules about that key report nothing.
  CHECK(errors_of("[model]\nhiden_size = \"x\"\nnum_attention_heads = 3\n") ==
        "job.toml:2:1: unknown key model.hiden_size; did you mean model.hidden_size?");
  // The correctly spelled key takes precedence, whether it stands before or after the misspelled
  // one.
  for (const char* text :
       {"[model]\nhidden_size = 96\nhiden_size = 100\nnum_attention_heads = 3\n",
        "[model]\nhiden_size = 100\nhidden_size = 96\nnum_attention_heads = 3\n"})
    CHECK(errors_of(text).find("no multiple") == std::string::npos);
}

TEST_CASE("what options change is judged with the file, and their own problems come with its own") {
  const Amend amend = [](LoadedJob& loaded) -> std::vector<Violation> {
    loaded.job.runner.hosts = {"a"};
    loaded.job.runner.hosts_file.clear();
    loaded.origins["runner.hosts"] = loaded.origins["runner.hosts_file"] = "--hosts";
    return {{"X9", {"--exclude"}, "names nobody; leave it out"},
            {"X8", {"data.data_prefixes", "data.chat_files"}, "nothing to train on; set it"},
            {"T5", {"model.hidden_size"}, "already said by the rules"}};
  };
  const auto loaded = load_job_text(
      "[runner]\nhosts = [\"a\"]\nhosts_file = \"h\"\n[data]\nchat_files = []\n"
      "[model]\nnum_attention_heads = 3\nnum_layer = 2\n",
      "job.toml", {"trainer.save_interval=5"}, amend);
  REQUIRE_FALSE(loaded);
  CHECK(loaded.error().message ==
        "job.toml:5:14: data.data_prefixes: nothing to train on; set it\n"
        "job.toml:7:23: model.hidden_size: 256 is no multiple of model.num_attention_heads = 3; "
        "use 255 or 258, or set model.head_dim\n"
        "job.toml:8:1: unknown key model.num_layer; did you mean model.num_layers?\n"
        "--set trainer.save_interval=5: trainer.save_interval: 5 asks for checkpoints, but "
        "trainer.save_dir is empty; set it\n"
        "command line: --exclude: names nobody; leave it out");
  // A violation that concerns a key set by an option names the option.
  const auto twice = load_job_text("", "job.toml", {}, [](LoadedJob& job) {
    job.job.runner.hosts = {"a", "a"};
    job.origins["runner.hosts"] = "--hosts";
    return std::vector<Violation>();
  });
  REQUIRE_FALSE(twice);
  CHECK(twice.error().message.starts_with("--hosts: runner.hosts: "));
}

TEST_CASE("a preset of --set over keys that are set says which of them win") {
  const std::string text = "[model]\nhidden_size = 64\nnum_layers = 12\nvocab_size = 256\n";
  const auto loaded = load_job_text(
      text, "job.toml",
      {"model.sequence_length=9", "model.preset=gpt2-124m", "model.num_attention_heads=4"});
  REQUIRE(loaded);
  CHECK(loaded->job.model.hidden_size == 64);
  REQUIRE(loaded->warnings.size() == 1);
  // Does not name num_layers, which equals the preset's value, nor keys set after the preset.
  CHECK(loaded->warnings[0] ==
        "--set model.preset=gpt2-124m: keys that are set win over the preset: model.hidden_size = "
        "64 (job.toml:2:15) instead of 768, model.sequence_length = 9 (--set) instead of 1024, "
        "model.vocab_size = 256 (job.toml:4:14) instead of 50257; remove them, or set them after "
        "the preset to the values that you want");
  CHECK(load_job_text("[model]\npreset = \"gpt2-124m\"\nnum_layers = 2\n", "job.toml",
                      {"model.vocab_size=256"})
            .value()
            .warnings.empty());
}

TEST_CASE("--set selects what does not read keys of the file: they are ignored with a warning") {
  struct Row {
    const char* text;
    std::vector<std::string> overrides;
    const char* warning;
  };
  const Row rows[] = {
      {"[learning_rate_scheduler]\nlearning_rate_decay_style = \"warmup-stable-decay\"\n"
       "wsd_decay_steps = 10\nwsd_decay_style = \"cosine\"\n",
       {"learning_rate_scheduler.learning_rate_decay_style=constant"},
       "--set learning_rate_scheduler.learning_rate_decay_style=constant: nothing reads these keys "
       "then, they are ignored: learning_rate_scheduler.wsd_decay_steps (job.toml:3:19), "
       "learning_rate_scheduler.wsd_decay_style (job.toml:4:19)"},
      {"[optimizer]\nbeta2 = 0.99\n",
       {"optimizer.name=demo"},
       "--set optimizer.name=demo: nothing reads these keys then, they are ignored: "
       "optimizer.beta2 (job.toml:2:9)"},
      {"[model]\nprecision = \"fp8\"\nfp8_scaling = \"delayed\"\n[trainer]\ndevice = \"cuda\"\n",
       {"model.precision=bf16"},
       "--set model.precision=bf16: nothing reads these keys then, they are ignored: "
       "model.fp8_scaling (job.toml:3:15)"},
      {"[outer]\nevery = 8\nstart_after = 4\n",
       {"topology.gradient_compression=none"},
       "--set topology.gradient_compression=none: nothing reads these keys then, they are ignored: "
       "outer.every (job.toml:2:9), outer.start_after (job.toml:3:15)"},
      {"[model]\narchitecture = \"mixtral\"\n[model.moe]\ntopk = 1\n",
       {"model.architecture=llama"},
       "--set model.architecture=llama: nothing reads these keys then, they are ignored: "
       "model.moe.topk (job.toml:4:8)"},
  };
  for (const Row& row : rows) {
    const auto loaded = load_job_text(row.text, "job.toml", row.overrides);
    REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
    REQUIRE(loaded->warnings.size() == 1);
    CHECK(loaded->warnings[0] == row.warning);
    // What remains is the same job as without these keys.
    CHECK(to_toml(load_job_text(to_toml(loaded->job), "again.toml").value().job) ==
          to_toml(loaded->job));
  }
  const auto loaded = load_job_text(rows[1].text, "job.toml", rows[1].overrides);
  CHECK(loaded->job.optimizer.beta2 == JobConfig().optimizer.beta2);
  CHECK(loaded->origins.at("optimizer.beta2") == "default");
}

TEST_CASE("keys that nothing reads are an error if one place sets both") {
  const std::string advice =
      "optimizer.beta2: optimizer.name = \"demo\" has no such setting; remove it, or set "
      "optimizer.name = \"adamw\"";
  CHECK(errors_of("[optimizer]\nname = \"demo\"\nbeta2 = 0.99\n") == "job.toml:3:9: " + advice);
  CHECK(errors_of("", {"optimizer.name=demo", "optimizer.beta2=0.99"}) ==
        "--set optimizer.beta2=0.99: " + advice);
  CHECK(errors_of("[optimizer]\nname = \"demo\"\n", {"optimizer.beta2=0.99"}) ==
        "--set optimizer.beta2=0.99: " + advice);
}

TEST_CASE("each syntax error has its place, and lines without errors are still read") {
  struct Row {
    const char* text;
    const char* error;
  };
  const Row rows[] = {
      {"[model]\nhidden_size = bla\n",
       "job.toml:2:15: syntax: this is no TOML value; put strings in quotes"},
      {"[model]\nhidden_size = 1\nhidden_size = 2\n",
       "job.toml:3:15: duplicate: cannot redefine existing integer 'hidden_size'; remove one of "
       "the two"},
      {"[model]\n[data]\n[model]\n",
       "job.toml:3:1: duplicate: cannot redefine existing table 'model'; remove one of the two"},
      {"[model\n", "job.toml:1:7: syntax: expected ']', saw '\\n' (in table header)"},
      {"[runner]\nhosts = [[[[[[[[[1]]]]]]]]]\n",
       "job.toml:2:17: syntax: more than 8 lists or tables inside each other; flatten them"},
      {"[model]\nhidden_size = = 1\nnum_layers = \"x\nvocab_sise = 3\n",
       "job.toml:2:15: syntax: this is no TOML value; put strings in quotes\n"
       "job.toml:3:16: syntax: unescaped control characters other than TAB (U+0009) are explicitly "
       "prohibited (in string)\n"
       "job.toml:4:1: unknown key model.vocab_sise; did you mean model.vocab_size?"},
      {"[runner]\nhosts = [\"a\"\nmpi = \"on\"\ngrace = 3\n",
       "job.toml:3:1: syntax: expected comma or closing ']', saw 'm' (in array)"},
  };
  for (const Row& row : rows) CHECK(errors_of(row.text) == row.error);
}

TEST_CASE("input that trips over the TOML library itself is an error like any other") {
  // Input that fails an assertion of the library in builds with assertions.
  CHECK(errors_of("[\n[").starts_with("job.toml:1:2: syntax: "));
  // A non-ASCII letter where the library tests for a blank: undefined behaviour in the library.
  for (const std::string_view letter : {"\u00ec", "\u00df", "\u03c9", "\u2603"}) {
    CHECK(errors_of(fmt::format("{}\n", letter)).starts_with("job.toml:1:1: syntax: "));
    CHECK(errors_of(fmt::format("[model]\nnum_layers {}= 2\n", letter))
              .starts_with("job.toml:2:12: syntax: "));
  }
}

TEST_CASE("unknown names get the nearest one, also of another section or another suite") {
  struct Row {
    const char* text;
    const char* error;
  };
  const Row rows[] = {
      {"[topology]\nmico_batch_size = 1\n",
       "job.toml:2:1: unknown key topology.mico_batch_size; did you mean "
       "topology.micro_batch_size?"},
      {"[trainer]\nmicro_batch_size = 1\n",
       "job.toml:2:1: unknown key trainer.micro_batch_size; did you mean "
       "topology.micro_batch_size?"},
      {"micro_batch_size = 1\n",
       "job.toml:1:1: unknown key micro_batch_size; did you mean topology.micro_batch_size?"},
      {"[optimizer]\nlr = 1\n",
       "job.toml:2:1: unknown key optimizer.lr; did you mean "
       "learning_rate_scheduler.learning_rate?"},
      {"[topology]\ntensor_model_parallel_size = 2\n",
       "job.toml:2:1: unknown key topology.tensor_model_parallel_size; did you mean "
       "topology.tensor_parallel_size?"},
      {"[topology]\nuse_distributed_optimizer = true\n",
       "job.toml:2:1: unknown key topology.use_distributed_optimizer: set "
       "topology.parameter_sharding = \"optimizer\""},
      {"[optimizer]\nzero = true\n",
       "job.toml:2:1: unknown key optimizer.zero: set topology.parameter_sharding = \"optimizer\""},
      {"[optimizer]\nzero_stage = 3\n",
       "job.toml:2:1: unknown key optimizer.zero_stage: set topology.parameter_sharding: "
       "\"optimizer\" is stage 1, \"full\" is stage 3"},
      {"[topology]\nfsdp = true\n",
       "job.toml:2:1: unknown key topology.fsdp: set topology.parameter_sharding = \"full\""},
      {"[transformer_architecture]\nx = 1\n",
       "job.toml:1:2: unknown section [transformer_architecture]; did you mean [model]?\n"
       "job.toml:2:1: unknown key model.x; `sortie config init --all` prints all keys"},
      {"[runner.shs]\nport = 1\n",
       "job.toml:1:9: unknown section [runner.shs]; did you mean [runner.ssh]?"},
      {"[zzzzzzzzzzzz]\n",
       "job.toml:1:2: unknown section [zzzzzzzzzzzz]; the sections are [runner] [runner.network] "
       "[runner.container] [runner.ssh] [recovery] [watchdog] [logger] [topology] [optimizer] "
       "[learning_rate_scheduler] [outer] "
       "[lora] [trainer] "
       "[profiler] [model] [model.moe] [model.mla] [model.mtp] "
       "[data]"},
      {"[data]\nqqqqqqqqqqq = 1\n",
       "job.toml:2:1: unknown key data.qqqqqqqqqqq; `sortie config init --all` prints all keys"},
  };
  for (const Row& row : rows) CHECK(errors_of(row.text) == row.error);
}

TEST_CASE("a value of the wrong type or outside its range says what to write") {
  struct Row {
    const char* text;
    const char* error;
  };
  const Row rows[] = {
      {"[logger]\ntensorboard = \"yes\"",
       "logger.tensorboard: must be true or false, not \"yes\"; write true or false"},
      {"[model]\nnum_layers = 4.0",
       "model.num_layers: must be a whole number, not 4.0; use 1 to 65536"},
      {"[optimizer]\nbeta1 = 1", "optimizer.beta1: 1.0 is out of range; use a number >= 0 and < 1"},
      {"[optimizer]\neps = nan", "optimizer.eps: nan is out of range; use a number > 0 and <= 1"},
      {"[optimizer]\neps = 1e-300",
       "optimizer.eps: 1e-300 is lost in f32, which the trainer computes in; use at least "
       "1.1754944e-38"},
      {"[optimizer]\nweight_decay = 1e-40",
       "optimizer.weight_decay: 1e-40 is lost in f32, which the trainer computes in; use at least "
       "1.1754944e-38, or 0"},
      {"[optimizer]\nbeta2 = 0.99999999",
       "optimizer.beta2: 0.99999999 is 1 in f32, which the trainer computes in; use a number >= 0 "
       "and < 1"},
      {"[model]\nrotary_embedding_base = 1.00000001",
       "model.rotary_embedding_base: 1.00000001 is 1 in f32, which the trainer computes in; use a "
       "number > 1 and <= 1000000000000"},
      {"[optimizer]\nweight_decay = inf",
       "optimizer.weight_decay: inf is out of range; use 0 to 10"},
      {"[runner]\nmpi = true", "runner.mpi: must be a string, not true; write mpi = \"auto\""},
      {"[runner]\nmpi = \"of\"",
       "runner.mpi: \"of\" is not one of auto | on | off; did you mean \"off\"?"},
      {"[runner]\nhosts = \"a\"",
       "runner.hosts: must be a list of strings, not \"a\"; write [\"a\"]"},
      {"[runner]\nenv = 3",
       "runner.env: must be a table of strings, not a number; write env = { NAME = \"value\" }"},
      {"[runner]\ngrace = \"10\"",
       "runner.grace: \"10\" has no unit; write a number and a unit, like \"500ms\", \"30s\", "
       "\"2m\" or \"1h\""},
      {"[runner]\ngrace = \"2h\"", "runner.grace: \"2h\" is out of range; use 0s to 1h"},
      {"[runner]\ngrace = 1979-05-27",
       "runner.grace: must be a duration, not a date or time; write one like \"30s\""},
      {"[data]\ntokenizer = \"bpe\"",
       "data.tokenizer: \"bpe\" is no tokenizer; write \"byte\", \"sentencepiece:FILE\" or "
       "\"hf:FILE\""},
      {"[data]\nweights = [\"0\"]",
       "data.weights: \"0\" is no weight; write a number above 0 in quotes, like \"0.7\""},
      {"[trainer]\nsave_dir = \"~me/x\"",
       "trainer.save_dir: \"~me/x\" names another user's home folder; only ~/ is expanded, write "
       "the path"},
      {"[runner]\nprogram = [\"\\u0000\"]",
       "runner.program: \"\\u0000\" has a NUL character; remove it"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const std::string error = errors_of(row.text);
    CHECK(error.starts_with("job.toml:2:"));
    CHECK(error.substr(error.find(": ") + 2) == row.error);
  }
}

TEST_CASE("an item of a list or table has its own place") {
  CHECK(errors_of("[runner]\nhosts = [\n  \"a\",\n  \"b slots=0\",\n  \"-c\",\n]\n") ==
        "job.toml:4:3: runner.hosts: slots=0: \"0\" is no number from 1 to 4096; write slots=4 for "
        "four slots or slots=0,2,5 for device ids\n"
        "job.toml:5:3: runner.hosts: \"-c\" is no host name; use letters, digits, '.', '_' and "
        "'-', no '.' or '-' first");
  CHECK(errors_of("[runner.env]\nA = \"1\"\nB = 2\n\"C D\" = \"\"\n") ==
        "job.toml:3:5: runner.env: B must be a string, not a number; put it in quotes");
  CHECK(errors_of("[runner.env]\nA = \"1\"\n\"C D\" = \"\"\n") ==
        "job.toml:3:1: runner.env: \"C D\" is no name of an environment variable; use letters, "
        "digits and _, no digit first");
  CHECK(errors_of("[data]\ndata_prefixes = [\"a.bin\"]") ==
        "job.toml:2:18: data.data_prefixes: \"a.bin\" is one of the two files of a prefix; write "
        "\"a\"");
}

TEST_CASE("a section can not be a value") {
  CHECK(errors_of("runner = 3\n") ==
        "job.toml:1:10: runner: is a section, not 3; write [runner] and its keys below");
  CHECK(errors_of("[[model]]\n") ==
        "job.toml:1:1: model: is a section, not a list; write [model] and its keys below");
}

TEST_CASE("--set takes TOML values, bare words, and single environment variables") {
  const auto loaded = load_job_text(
      "[runner.env]\nA = \"1\"\nB = \"2\"\n", "job.toml",
      {"runner.env.B=3", "runner.env.C=x=y", "runner.hosts=[\"a slots=2\", 'b']",
       "trainer.save_dir=/a b/c", "trainer.load_dir=\"/q\"", "runner.grace=1.5s",
       "optimizer.weight_decay=0", "logger.tensorboard=false", "runner.ssh.user=true"});
  REQUIRE(loaded);
  const JobConfig& job = loaded->job;
  CHECK(job.runner.env == std::map<std::string, std::string>{{"A", "1"}, {"B", "3"}, {"C", "x=y"}});
  CHECK(job.runner.hosts == std::vector<std::string>{"a slots=2", "b"});
  CHECK(job.trainer.save_dir == "/a b/c");
  CHECK(job.trainer.load_dir == "/q");
  CHECK(job.runner.grace == Milliseconds(1500));
  CHECK(job.optimizer.weight_decay == 0.0);
  CHECK_FALSE(job.logger.tensorboard);
  CHECK(job.runner.ssh.user == "true");
}

TEST_CASE("a bad --set is named as it was written") {
  CHECK(set_error("runner.ssh.port=x") ==
        "--set runner.ssh.port=x: runner.ssh.port: must be a whole number, not \"x\"; use 0 to "
        "65535");
  CHECK(set_error("runner.ssh.prot=1") ==
        "--set runner.ssh.prot: unknown key runner.ssh.prot; did you mean runner.ssh.port?");
  CHECK(set_error("runner.ssh=1") ==
        "--set runner.ssh: runner.ssh is a section; set one of its keys");
  CHECK(set_error("runner.hosts=a") ==
        "--set runner.hosts=a: runner.hosts: must be a list of strings, not \"a\"; write [\"a\"]");
  // What a shell makes of --set runner.hosts=["a","b 1"], which quotes would have kept.
  CHECK(set_error("runner.hosts=[a,b 1]") ==
        "--set runner.hosts=[a,b 1]: runner.hosts: must be a list of strings, not \"[a,b 1]\"; "
        "write [\"a\",\"b 1\"], on a command line in single quotes: --set "
        "'runner.hosts=[\"a\",\"b 1\"]'");
  for (const char* bad : {"\"qq", "'qq", "\"a\" b", "\""})
    for (const char* key : {"trainer.save_dir", "runner.hosts"}) {
      CAPTURE(bad);
      CHECK(set_error(std::string(key) + "=" + bad)
                .ends_with(std::string(key) + ": the value begins with " + bad[0] +
                           " and is no string in quotes; remove the quote, or write one at both "
                           "ends"));
    }
  const auto variable = load_job_text("", "job.toml", {"runner.env.NAME=\"a\" b"});
  REQUIRE(variable);
  CHECK(variable->job.runner.env.at("NAME") == "\"a\" b");
  CHECK(set_error("logger.tensorboard=1") ==
        "--set logger.tensorboard=1: logger.tensorboard: must be true or false, not 1; write true "
        "or false");
  CHECK(set_error("runner.hosts=") ==
        "--set runner.hosts=: runner.hosts: must be a list of strings, not \"\"; write [\"...\"]");
  CHECK(set_error("trainer.seed=1\n[model]") ==
        "--set trainer.seed=1\n[model]: trainer.seed: must be a whole number, not "
        "\"1\\n[model]\"; use 0 to 9223372036854775807");
  CHECK(set_error("runner.env.A B=1") ==
        "--set runner.env.A B: runner.env: \"A B\" is no name of an environment variable; use "
        "letters, digits and _, no digit first");
  CHECK(set_error("model.num_attention_heads=3") ==
        "--set model.num_attention_heads=3: model.hidden_size: 256 is no multiple of "
        "model.num_attention_heads = 3; use 255 or 258, or set model.head_dim");
}

TEST_CASE("files that are too large, too deep or absent are one error") {
  CHECK(errors_of(std::string((4u << 20) + 1, '#')) ==
        "job.toml: larger than the limit of 4194304 bytes for a config");
  std::string deep = "a";
  for (int i = 0; i < 1'000'000; ++i) deep += ".a";
  CHECK(errors_of(deep + " = 1") ==
        "job.toml:1:1: syntax: more than 2048 dots in one line; split the line");
  const auto absent = load_job("/nonexistent/job.toml");
  REQUIRE_FALSE(absent);
  CHECK(absent.error().code == ErrorCode::not_found);
  CHECK(absent.error().message ==
        "/nonexistent/job.toml: No such file or directory; `sortie config init` prints a config "
        "to start from");
}

TEST_CASE("tables of dotted keys, as deep as the parser takes them, are refused without a crash") {
  const auto nested = [](int dots) {
    std::string keys = "a";
    for (int i = 0; i < dots; ++i) keys += ".a";
    std::string text = "x = ";
    for (int i = 0; i < 4; ++i) text += "[\n{" + keys + " = ";
    text += "1";
    for (int i = 0; i < 4; ++i) text += "}\n]";
    return errors_of(text);
  };
  CHECK(nested(10).starts_with("job.toml:1:1: unknown key x"));
  CHECK(nested(20).find("more than 64 tables inside each other; flatten") != std::string::npos);
  CHECK(nested(2048).find("more than 64 tables inside each other; flatten") != std::string::npos);
}
