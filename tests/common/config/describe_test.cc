// The texts that describe a config: each contains every key, and their statements are true.
#include "common/config/describe.h"

#include <doctest/doctest.h>
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "common/config/architectures.h"
#include "common/config/fields.h"

namespace sortie::config {
namespace {

using Json = nlohmann::json;

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++count;
  return count;
}

/// The JSON schema of a full key.
Json schema_of(const Json& root, std::string_view key) {
  Json node = root;
  while (!key.empty()) {
    const std::size_t dot = std::min(key.find('.'), key.size());
    CHECK(node["type"] == "object");
    CHECK(node["additionalProperties"] == false);
    node = Json(node["properties"].at(std::string(key.substr(0, dot))));
    key.remove_prefix(std::min(dot + 1, key.size()));
  }
  return node;
}

TEST_CASE("the JSON schema has every key, with its type, range, default and meaning") {
  const Json root = Json::parse(json_schema());
  CHECK(root["$schema"] == "https://json-schema.org/draft/2020-12/schema");
  std::size_t keys = 0;
  for (const Field& field : fields()) {
    CAPTURE(field.key);
    const Json schema = schema_of(root, field.key);
    ++keys;
    CHECK(schema["description"] == (field.unit.empty()
                                        ? std::string(field.help)
                                        : fmt::format("{} [{}]", field.help, field.unit)));
    REQUIRE(schema.contains("default"));
    const Json& value = schema["default"];
    switch (kind_of(field)) {
      case Kind::boolean:
        CHECK(schema["type"] == "boolean");
        CHECK(value.is_boolean());
        break;
      case Kind::integer:
        CHECK(schema["type"] == "integer");
        CHECK(value.is_number_integer());
        CHECK(schema["minimum"] <= value);
        CHECK(value <= schema["maximum"]);
        break;
      case Kind::number:
        CHECK(schema["type"] == "number");
        CHECK(value.is_number());
        CHECK((schema.contains("minimum") || schema.contains("exclusiveMinimum")));
        break;
      case Kind::text:
        CHECK(schema["type"] == "string");
        CHECK(value.is_string());
        break;
      case Kind::list:
        CHECK(schema["type"] == "array");
        CHECK(schema["items"]["type"] == "string");
        CHECK(value.is_array());
        break;
      case Kind::lists:
        CHECK(schema["type"] == "array");
        CHECK(schema["items"]["items"]["type"] == "string");
        CHECK(value.is_array());
        break;
      case Kind::table:
        CHECK(schema["type"] == "object");
        CHECK(value.is_object());
        break;
      case Kind::duration:
        CHECK(std::regex_match(value.get<std::string>(),
                               std::regex(schema["pattern"].get<std::string>())));
        break;
    }
    if (schema.contains("enum")) {
      const auto& words = schema["enum"];
      CHECK(std::find(words.begin(), words.end(), value) != words.end());
    }
  }
  CHECK(keys == fields().size());
  CHECK(keys > 60);
  const Json precision = schema_of(root, "model.precision");
  CHECK(precision["enum"] == Json{"auto", "bf16", "f32", "fp8"});
  const Json beta = schema_of(root, "optimizer.beta1");
  CHECK(beta["minimum"] == 0.0);
  CHECK(beta["exclusiveMaximum"] == 1.0);
}

TEST_CASE("the reference has one row of five cells per key, in its section") {
  const std::string text = reference_markdown();
  for (const Section& section : sections())
    CHECK(count_of(text, "\n## [" + std::string(section.name) + "]\n") == 1);
  std::size_t rows = 0;
  std::size_t at = 0;
  std::istringstream lines(text);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("## [")) section = line.substr(4, line.size() - 5);
    if (!line.starts_with("| `")) continue;
    ++rows;
    const std::string name = line.substr(3, line.find('`', 3) - 3);
    const Field* field = find_field(section + "." + name);
    REQUIRE_MESSAGE(field != nullptr, line);
    CHECK(field == &fields()[at++]);  // in table order, none left out
    CHECK(line.find("| `" + default_text(*field) + "` |") != line.npos);
    // Bars that are not escaped end cells.
    std::size_t bars = 0;
    for (std::size_t i = 0; i < line.size(); ++i)
      bars += line[i] == '|' && (i == 0 || line[i - 1] != '\\');
    CHECK_MESSAGE(bars == 6, line);
  }
  CHECK(rows == fields().size());
}

TEST_CASE("init --all gives a file that loads to the defaults, and each key in it can be set") {
  const std::string text = init_text({.all = true});
  const auto loaded = load_job_text(text, "init.toml");
  REQUIRE_MESSAGE(loaded.has_value(), (loaded ? "" : loaded.error().message));
  CHECK(to_toml(loaded->job) == to_toml(JobConfig{}));
  std::string all;
  std::istringstream lines(text);
  std::size_t keys = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t start = line.starts_with("#") ? 1 : 0;
    const bool key = line.find(" = ") != line.npos && line.size() > start &&
                     std::islower(static_cast<unsigned char>(line[start]));
    keys += key;
    all += (key ? line.substr(start) : line) + "\n";
  }
  CHECK(keys == fields().size());
  const auto whole = load_job_text(all, "all.toml");
  REQUIRE_MESSAGE(whole.has_value(), (whole ? "" : whole.error().message));
  CHECK(to_toml(whole->job) == to_toml(JobConfig{}));
  CHECK(whole->origins.size() == fields().size());  // every key was really set
}

TEST_CASE("init is short: the keys that people set, on one screen or two") {
  const std::string text = init_text();
  const auto loaded = load_job_text(text, "init.toml");
  REQUIRE_MESSAGE(loaded.has_value(), (loaded ? "" : loaded.error().message));
  CHECK(to_toml(loaded->job) == to_toml(JobConfig{}));
  CHECK(count_of(text, "\n") < 110);
  for (const char* key :
       {"\nhosts = ", "\n#default_slots = 1\n", "\nmicro_batch_size = ", "\n#global_batch_size = ",
        "\nlearning_rate = ", "\ntrain_iterations = ", "\nsave_dir = ", "\n#preset = ",
        "\nhidden_size = ", "\ndata_prefixes = ", "\n#tokenizer = "})
    CHECK_MESSAGE(count_of(text, key) == 1, key);
  for (const char* key : {"heartbeat_interval", "wandb_group", "[model.mla]", "rope_scaling"})
    CHECK_MESSAGE(count_of(text, key) == 0, key);
  CHECK(count_of(text, "`sortie config init --all`") == 1);
}

TEST_CASE("init with a preset gives that model, and its sizes to read") {
  for (const bool all : {false, true})
    for (const Preset& preset : presets()) {
      const std::string text = init_text({.all = all, .preset = std::string(preset.name)});
      const auto loaded = load_job_text(text, "init.toml");
      REQUIRE_MESSAGE(loaded.has_value(), (loaded ? "" : loaded.error().message));
      JobConfig wanted;
      wanted.model = preset.model;
      wanted.model.preset = preset.name;
      CHECK(to_toml(loaded->job) == to_toml(wanted));
      CHECK(count_of(text, fmt::format("\n#hidden_size = {}\n", preset.model.hidden_size)) == 1);
    }
}

TEST_CASE("show gives a config that loads to the same job, in short, whole, and with origins") {
  const auto job = load_job_text("[trainer]\nseed = 7\n[runner.env]\nA = \"b # c\"\n", "job.toml",
                                 {"model.num_layers=2"});
  // Shows a default value too if a preset would change it.
  const auto preset = load_job_text(
      "[model]\npreset = \"gpt2-124m\"\nhidden_size = 256\n"
      "num_attention_heads = 4\n",
      "job.toml");
  REQUIRE((job && preset));
  for (const LoadedJob* shown : {&*job, &*preset})
    for (const bool all : {false, true})
      for (const bool origin : {false, true}) {
        const std::string text = show(*shown, {all, origin});
        const auto again = load_job_text(text, "shown.toml");
        REQUIRE_MESSAGE(again.has_value(), (again ? "" : again.error().message));
        CHECK(to_toml(again->job) == to_toml(shown->job));
      }
  CHECK(show(*job) ==
        "[runner]\nenv = { A = \"b # c\" }\n\n[trainer]\nseed = 7\n\n[model]\nnum_layers = 2\n");
  const std::string text = show(*job, {.all = true, .origin = true});
  CHECK(count_of(text, "# job.toml:2:8\n") == 1);
  CHECK(count_of(text, "# --set\n") == 1);
  CHECK(count_of(text, "# default\n") == fields().size() - 3);
  CHECK(beside_preset(preset->job) ==
        std::vector<std::string>{"hidden_size = 256", "num_attention_heads = 4"});
  CHECK(beside_preset(job->job).empty());
  const auto nothing = load_job_text("", "job.toml");
  CHECK(load_job_text(show(*nothing), "again.toml").has_value());
}

TEST_CASE("the difference of two configs has a line for each key whose value differs") {
  const auto load = [](const char* text) { return load_job_text(text, "job.toml").value().job; };
  const JobConfig a = load("[trainer]\nseed = 7\n[runner.secret_env]\nA = \"one\"\n");
  CHECK(difference(a, a) == "");
  const JobConfig b = load(
      "[model]\npreset = \"gpt2-124m\"\nhidden_size = 256\n"
      "num_attention_heads = 4\n[runner.secret_env]\nA = \"two\"\n");
  const std::string text = difference(a, b);
  CHECK(count_of(text, "trainer.seed: 7 -> 42\n") == 1);
  CHECK(count_of(text, "model.architecture: \"llama\" -> \"gpt2\"\n") == 1);
  CHECK(count_of(text, "hidden_size") == 0);  // set in one of the two, but equal in both
  CHECK(count_of(text, "one") + count_of(text, "two") == 0);
  JobConfig many = a;
  for (int i = 0; i < 30; ++i) many.runner.hosts.push_back(fmt::format("host{}", i));
  CHECK(difference(a, many).starts_with("runner.hosts:\n  - []\n  + [\"host0\", "));
}

}  // namespace

TEST_CASE("a section in short gives the same values, with the tables below it") {
  CHECK(section_toml(JobConfig(), "model") == "[model]\n");
  for (const Preset& preset : presets()) {
    JobConfig job;
    job.model = preset.model;
    const std::string text = section_toml(job, "model");
    CAPTURE(text);
    CHECK(text.size() < to_toml(job).size() / 5);
    const auto loaded = load_job_text(text, "short.toml");
    REQUIRE(loaded.has_value());
    CHECK(section_toml(loaded->job, "model") == text);
    CHECK(to_toml(loaded->job) == to_toml(job));
  }
}

}  // namespace sortie::config
