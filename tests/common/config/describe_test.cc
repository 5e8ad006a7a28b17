// The config in words: every key is in all of them, and what they say is true.
#include "common/config/describe.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "common/config/architectures.h"
#include "common/config/fields.h"

namespace sortie::config {
namespace {

using nlohmann::json;

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++count;
  return count;
}

/// The schema of a full key.
json schema_of(const json& root, std::string_view key) {
  json node = root;
  while (!key.empty()) {
    const std::size_t dot = std::min(key.find('.'), key.size());
    CHECK(node["type"] == "object");
    CHECK(node["additionalProperties"] == false);
    node = json(node["properties"].at(std::string(key.substr(0, dot))));
    key.remove_prefix(std::min(dot + 1, key.size()));
  }
  return node;
}

TEST_CASE("the JSON schema has every key, with its type, range, default and meaning") {
  const json root = json::parse(json_schema());
  CHECK(root["$schema"] == "https://json-schema.org/draft/2020-12/schema");
  std::size_t keys = 0;
  for (const Field& field : fields()) {
    CAPTURE(field.key);
    const json schema = schema_of(root, field.key);
    ++keys;
    CHECK(schema["description"] == field.help);
    REQUIRE(schema.contains("default"));
    const json& value = schema["default"];
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
  const json precision = schema_of(root, "model.precision");
  CHECK(precision["enum"] == json{"auto", "bf16", "f32"});
  const json beta = schema_of(root, "optimizer.beta1");
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
    // Bars that end cells: those not escaped.
    std::size_t bars = 0;
    for (std::size_t i = 0; i < line.size(); ++i)
      bars += line[i] == '|' && (i == 0 || line[i - 1] != '\\');
    CHECK_MESSAGE(bars == 6, line);
  }
  CHECK(rows == fields().size());
}

TEST_CASE("init gives a file that loads to the defaults, and each key in it can be switched on") {
  const std::string text = init_text();
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

TEST_CASE("show gives a config that loads to the same job, with and without origins") {
  const auto job = load_job_text("[trainer]\nseed = 7\n[runner.env]\nA = \"b # c\"\n", "job.toml",
                                 {"model.num_layers=2"});
  REQUIRE(job);
  for (const bool with_origin : {false, true}) {
    const std::string text = show(*job, with_origin);
    const auto again = load_job_text(text, "shown.toml");
    REQUIRE_MESSAGE(again.has_value(), (again ? "" : again.error().message));
    CHECK(to_toml(again->job) == to_toml(job->job));
  }
  const std::string text = show(*job, true);
  CHECK(count_of(text, "# job.toml:2:8\n") == 1);
  CHECK(count_of(text, "# --set\n") == 1);
  CHECK(count_of(text, "# default\n") == fields().size() - 3);
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
