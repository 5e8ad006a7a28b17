#include "trainer/hf/config_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/config/architectures.h"
#include "common/config/fields.h"
#include "common/config/validate.h"

namespace sortie::trainer {
namespace {

using Json = nlohmann::json;

template <class... F>
struct Overload : F... {
  using F::operator()...;
};
template <class... F>
Overload(F...) -> Overload<F...>;

/// Sets the member from the key, or from the fallback if absent. Returns the problem; empty if
/// none.
std::string read_key(const Json& json, const HfKey& key, config::ModelConfig& model) {
  const auto found = json.find(key.name);
  const bool absent = found == json.end() || found->is_null();
  return std::visit(
      Overload{[&](std::int64_t config::ModelConfig::*member) -> std::string {
                 if (absent) {
                   model.*member = static_cast<std::int64_t>(key.fallback);
                 } else if (found->is_number_integer()) {
                   model.*member = found->get<std::int64_t>();
                 } else {
                   return fmt::format("{} is {}, not a whole number", key.name, found->dump());
                 }
                 return {};
               },
               [&](double config::ModelConfig::*member) -> std::string {
                 if (absent) {
                   model.*member = key.fallback;
                 } else if (found->is_number()) {
                   model.*member = found->get<double>();
                 } else {
                   return fmt::format("{} is {}, not a number", key.name, found->dump());
                 }
                 return {};
               },
               [&](bool config::ModelConfig::*member) -> std::string {
                 if (absent) {
                   model.*member = key.fallback != 0.0;
                 } else if (found->is_boolean()) {
                   model.*member = found->get<bool>();
                 } else {
                   return fmt::format("{} is {}, neither true nor false", key.name, found->dump());
                 }
                 return {};
               }},
      key.member);
}

Json fixed_value(const HfFixed& fixed) {
  return std::visit(Overload{[](std::string_view text) { return Json(std::string(text)); },
                             [](auto value) { return Json(value); }},
                    fixed.value);
}

bool stands_for(const Json& value, const HfFixed& fixed) {
  return value == fixed_value(fixed) ||
         (value.is_string() &&
          std::ranges::find(fixed.same, value.get_ref<const std::string&>()) != fixed.same.end());
}

const Family* find_model_type(const Json& json) {
  const auto type = json.find("model_type");
  if (type == json.end() || !type->is_string()) return nullptr;
  for (const Family& family : families())
    if (family.hf.model_type == type->get_ref<const std::string&>()) return &family;
  return nullptr;
}

/// Returns the model with derived sizes in place of 0.
config::ModelConfig resolved(config::ModelConfig model) {
  const ModelShape shape = resolve_shape(model);
  model.attention_num_kv_heads = shape.kv_heads;
  model.ffn_hidden_size = shape.ffn;
  model.head_dim = shape.head_dim;
  model.num_positions = shape.num_positions;
  if (config::architecture_of(model).mixture) model.moe.ffn_hidden_size = expert_ffn(model, shape);
  return model;
}

}  // namespace

Result<config::ModelConfig> read_hf_config(const Json& json, std::string_view where) {
  if (!json.is_object()) return fail(ErrorCode::data, fmt::format("{}: not a JSON object", where));
  const Family* family = find_model_type(json);
  if (family == nullptr) {
    std::vector<std::string_view> known;
    for (const Family& one : families()) known.push_back(one.hf.model_type);
    return fail(
        ErrorCode::unsupported,
        fmt::format("{}: model_type {} is not known; these are: {}", where,
                    json.contains("model_type") ? json["model_type"].dump() : "is absent and",
                    fmt::join(known, ", ")));
  }
  config::ModelConfig model;
  model.architecture = family->name;
  std::vector<std::string> problems;
  const auto note = [&](std::string problem) {
    if (!problem.empty()) problems.push_back(std::move(problem));
  };
  for (const HfKey& key : family->hf.keys) note(read_key(json, key, model));
  for (const HfFixed& fixed : family->hf.fixed)
    if (json.contains(fixed.name) && !stands_for(json[std::string(fixed.name)], fixed))
      note(fmt::format("{} is {}, only {} is implemented", fixed.name,
                       json[std::string(fixed.name)].dump(), fixed_value(fixed).dump()));
  // The parts iterate over the layers, so only a plausible number of layers is passed to them.
  if (model.num_layers >= 1 && model.num_layers <= 65536)
    for (const HfPart* part : family->hf.parts)
      if (const auto read = part->read(json, model); !read) note(read.error().message);
  model.sequence_length = model.num_positions;
  if (problems.empty()) {
    config::JobConfig job;
    job.model = model;
    for (const config::Field& field : config::fields())
      if (config::section_of(field).starts_with("model"))
        if (std::string error = config::check_value(field, job); !error.empty())
          note(fmt::format("{}: {}", field.key, error));
    if (problems.empty())
      for (const config::Violation& violation : config::check_model(model))
        note(fmt::format("{}: {}", violation.keys.front(), violation.message));
  }
  if (problems.empty()) {
    constexpr std::int64_t kMaxRopeTable = std::int64_t{1} << 30;
    const ModelShape shape = resolve_shape(model);
    if (shape.rotary_dims > 0 && shape.num_positions > kMaxRopeTable / shape.rotary_dims)
      note(fmt::format("{} positions of {} turned dimensions are more than a RoPE table holds",
                       shape.num_positions, shape.rotary_dims));
  }
  if (!problems.empty())
    return fail(ErrorCode::unsupported,
                fmt::format("{}: {}", where, fmt::join(problems, fmt::format("\n{}: ", where))));
  return model;
}

Result<> write_hf_config(const config::ModelConfig& given, Json& json) {
  const Family& family = family_of(given.architecture);
  const config::ModelConfig model = resolved(given);
  const bool has_head_dim =
      std::ranges::any_of(family.hf.keys, [](const HfKey& key) { return key.name == "head_dim"; });
  if (!has_head_dim && !config::architecture_of(model).latent &&
      model.head_dim * model.num_attention_heads != model.hidden_size)
    return fail(ErrorCode::unsupported,
                fmt::format("model.head_dim = {}: {} of transformers has heads of hidden_size / "
                            "num_attention_heads only",
                            model.head_dim, family.hf.architecture));
  config::ModelConfig old;
  const bool same_family = json.is_object() && find_model_type(json) == &family;
  // transformers assumes default ids if a file has none.
  if (!same_family)
    json = {{"bos_token_id", nullptr}, {"eos_token_id", nullptr}, {"pad_token_id", nullptr}};
  json["model_type"] = family.hf.model_type;
  json["architectures"] = Json::array({family.hf.architecture});
  for (const HfKey& key : family.hf.keys) {
    // A value that already means the same keeps its spelling (null, absent).
    if (same_family && read_key(json, key, old).empty()) {
      const config::ModelConfig before = old;
      const bool same = std::visit(
          [&](auto member) {
            return before.*member == model.*member || before.*member == given.*member;
          },
          key.member);
      if (same) continue;
    }
    std::visit([&](auto member) { json[std::string(key.name)] = model.*member; }, key.member);
  }
  for (const HfFixed& fixed : family.hf.fixed)
    if (!same_family) json[std::string(fixed.name)] = fixed_value(fixed);
  for (const HfPart* part : family.hf.parts) SORTIE_TRY(part->write(model, json));
  return {};
}

}  // namespace sortie::trainer
