#include "common/config/describe.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/config/fields.h"

namespace sortie::config {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kKindNames[] = {"boolean",  "integer",         "number",
                                           "string",   "list of strings", "table of strings",
                                           "duration", "list of lists"};

std::string_view kind_name(const Field& field) {
  return kKindNames[static_cast<std::size_t>(kind_of(field))];
}

Json kind_schema(Kind kind) {
  switch (kind) {
    case Kind::boolean:
      return {{"type", "boolean"}};
    case Kind::integer:
      return {{"type", "integer"}};
    case Kind::number:
      return {{"type", "number"}};
    case Kind::text:
      return {{"type", "string"}};
    case Kind::list:
      return {{"type", "array"}, {"items", {{"type", "string"}}}};
    case Kind::table:
      return {{"type", "object"}, {"additionalProperties", {{"type", "string"}}}};
    case Kind::lists:
      return {{"type", "array"}, {"items", kind_schema(Kind::list)}};
    case Kind::duration:
      return {{"type", "string"}, {"pattern", "^[0-9]+(\\.[0-9]+)?(ms|s|m|h)$"}};
  }
  return {};
}

Json default_json(const Field& field) {
  JobConfig job;
  const Slot slot = field.slot(job);
  if (const auto* const* table = std::get_if<std::map<std::string, std::string>*>(&slot)) {
    Json out = Json::object();
    for (const auto& [name, value] : **table) out[name] = value;
    return out;
  }
  return Json::parse(default_text(field));
}

Json value_schema(const Field& field) {
  Json out = kind_schema(kind_of(field));
  if (const auto* range = std::get_if<IntegerRange>(&field.rule)) {
    out["minimum"] = range->min;
    out["maximum"] = range->max;
  } else if (const auto* numbers = std::get_if<NumberRange>(&field.rule)) {
    out[numbers->without_min ? "exclusiveMinimum" : "minimum"] = numbers->min;
    out[numbers->without_max ? "exclusiveMaximum" : "maximum"] = numbers->max;
  } else if (const auto* choices = std::get_if<Choices>(&field.rule)) {
    out["enum"] = choices->words;
  }
  out["default"] = default_json(field);
  out["description"] = field.help;
  return out;
}

/// "Help, in unit (allowed)." of one field.
std::string sentence(const Field& field) {
  std::string out(field.help);
  if (!field.unit.empty()) out += fmt::format(", in {}", field.unit);
  return out;
}

template <class Visit>
void for_each_section(Visit visit) {
  for (const Section& section : sections()) {
    std::vector<const Field*> members;
    for (const Field& field : fields())
      if (section_of(field) == section.name) members.push_back(&field);
    visit(section, members);
  }
}

/// Inside a table of the reference a bar would end the cell.
std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != text.npos; at += 2) text.insert(at, "\\");
  return text;
}

}  // namespace

std::string show(const LoadedJob& job, bool with_origin) {
  if (!with_origin) return to_toml(job.job);
  std::string out;
  for_each_section([&](const Section& section, const std::vector<const Field*>& members) {
    out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section.name);
    for (const Field* field : members) {
      const auto origin = job.origins.find(std::string(field->key));
      const std::string line = fmt::format("{} = {}", name_of(*field), value_text(*field, job.job));
      out += fmt::format("{:<48} # {}\n", line,
                         origin == job.origins.end() ? "default" : origin->second);
    }
  });
  return out;
}

std::string section_toml(const JobConfig& job, std::string_view name) {
  std::string out;
  for_each_section([&](const Section& section, const std::vector<const Field*>& members) {
    if (section.name != name && !section.name.starts_with(std::string(name) + ".")) return;
    std::string lines;
    for (const Field* field : members)
      if (const std::string value = value_text(*field, job); value != default_text(*field))
        lines += fmt::format("{} = {}\n", name_of(*field), value);
    if (lines.empty() && section.name != name) return;
    out += fmt::format("{}[{}]\n{}", out.empty() ? "" : "\n", section.name, lines);
  });
  return out;
}

std::string json_schema() {
  const Json empty = {
      {"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "Sortie job"}};
  root.update(empty);
  for_each_section([&](const Section& section, const std::vector<const Field*>& members) {
    Json* node = &root;
    for (std::string_view path = section.name; !path.empty();) {
      const std::size_t dot = std::min(path.find('.'), path.size());
      Json& child = (*node)["properties"][std::string(path.substr(0, dot))];
      if (child.is_null()) child = empty;
      node = &child;
      path.remove_prefix(std::min(dot + 1, path.size()));
    }
    (*node)["description"] = section.help;
    for (const Field* field : members)
      (*node)["properties"][std::string(name_of(*field))] = value_schema(*field);
  });
  return root.dump(2) + "\n";
}

std::string reference_markdown() {
  std::string out = R"(# Config reference

Generated by `sortie config reference > docs/config.md`; do not edit.

A config is a TOML file. Every key has a default; an unknown key is an error. Durations are strings
with a unit (`"500ms"`, `"30s"`, `"2m"`, `"1h"`). Relative paths start at the folder in which
`sortie` runs; `~/` is the home folder. `--set section.key=value` overrides a key of the file.
)";
  for_each_section([&](const Section& section, const std::vector<const Field*>& members) {
    out += fmt::format("\n## [{}]\n\n{}.\n\n| key | type | allowed | default | meaning |\n",
                       section.name, section.help);
    out += "|---|---|---|---|---|\n";
    for (const Field* field : members)
      out += fmt::format("| `{}` | {} | {} | `{}` | {} |\n", name_of(*field), kind_name(*field),
                         cell(allowed_text(*field)), default_text(*field), cell(sentence(*field)));
  });
  return out;
}

std::string init_text() {
  std::string out =
      "# A Sortie job. Every key is here with its default; take away the '#' of what you change.\n";
  for_each_section([&](const Section& section, const std::vector<const Field*>& members) {
    out += fmt::format("\n# {}.\n[{}]\n", section.help, section.name);
    for (const Field* field : members)
      out += fmt::format("# {}. Allowed: {}\n{}{} = {}\n", sentence(*field), allowed_text(*field),
                         field->flags & kShown ? "" : "#", name_of(*field), default_text(*field));
  });
  return out;
}

}  // namespace sortie::config
