#include "common/training/model_cost.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace sortie::training {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string spaced(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '_', ' ');
  return text;
}

/// More than any output has, and few enough that the sum of all bytes does not overflow.
constexpr std::size_t kMostParts = 64, kMostStages = std::size_t{1} << 16;
constexpr std::int64_t kMostBytes = 100'000'000'000'000'000;

/// Reads a size: a whole number that is not negative. Anything else in the JSON gives 0.
std::int64_t size_at(const OrderedJson& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return 0;
  return std::clamp<std::int64_t>(found->get<std::int64_t>(), 0, kMostBytes);
}

std::string text_at(const OrderedJson& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

double number_at(const OrderedJson& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0.0;
}

OrderedJson sent_json(const std::vector<ModelCost::Sent>& sent) {
  OrderedJson out = OrderedJson::array();
  for (const ModelCost::Sent& one : sent) {
    OrderedJson& entry = out.emplace_back(OrderedJson{{"group", one.group}});
    if (one.peer >= 0) entry["peer"] = one.peer;
    entry["bytes"] = one.bytes;
  }
  return out;
}

/// Returns an empty list if the member is missing or malformed.
std::vector<std::vector<ModelCost::StageUse>> parse_stages(const OrderedJson& json) {
  std::vector<std::vector<ModelCost::StageUse>> stages;
  const auto found = json.find("stages");
  if (found == json.end() || !found->is_array() || found->size() > kMostStages) return stages;
  for (const OrderedJson& stage : *found) {
    auto& uses = stages.emplace_back();
    if (!stage.is_object()) continue;
    for (const auto& [precision, use] : stage.items()) {
      if (!use.is_object() || uses.size() == kMostParts) continue;
      ModelCost::StageUse& parsed = uses.emplace_back(precision, size_at(use, "memory_bytes"),
                                                      std::vector<ModelCost::Sent>());
      const auto sent = use.find("sent");
      if (sent == use.end() || !sent->is_array() || sent->size() > kMostParts) continue;
      for (const OrderedJson& one : *sent)
        if (one.is_object())
          parsed.sent.push_back({text_at(one, "group"),
                                 one.contains("peer") ? size_at(one, "peer") : -1,
                                 size_at(one, "bytes")});
    }
  }
  return stages;
}

}  // namespace

std::int64_t ModelCost::Memory::total() const {
  std::int64_t sum = 0;
  for (const auto& [name, bytes] : parts) sum += bytes;
  return sum;
}

std::int64_t ModelCost::Memory::part(std::string_view name) const {
  for (const auto& [own, bytes] : parts)
    if (own == name) return bytes;
  return 0;
}

std::int64_t ModelCost::Memory::on_host() const {
  if (part("device") == 0) return total();
  return part("snapshot") + part("memory_checkpoints") + part("process");
}

nlohmann::ordered_json to_json(const ModelCost& cost) {
  OrderedJson memory = OrderedJson::object();
  for (const ModelCost::Memory& of : cost.memory) {
    OrderedJson bytes = {{"total", of.total()}};
    for (const auto& [part, size] : of.parts) bytes[part] = size;
    memory[of.precision] = bytes;
  }
  OrderedJson stages = OrderedJson::array();
  for (const auto& uses : cost.stages) {
    OrderedJson& stage = stages.emplace_back(OrderedJson::object());
    for (const ModelCost::StageUse& use : uses)
      stage[use.precision] = {{"memory_bytes", use.memory_bytes}, {"sent", sent_json(use.sent)}};
  }
  OrderedJson json = {{"version", cost.version},
                      {"isa", cost.isa},
                      {"architecture", cost.architecture},
                      {"preset", cost.preset},
                      {"parameters", cost.parameters},
                      {"active_parameters", cost.active_parameters},
                      {"trained_parameters", cost.trained_parameters},
                      {"flops_per_token", cost.flops_per_token},
                      {"threads", cost.threads},
                      {"rank_memory_bytes", memory},
                      {"stages", stages},
                      {"bubble", cost.bubble}};
  if (!cost.note.empty()) json["note"] = cost.note;
  return json;
}

Result<ModelCost> parse_model_cost(std::string_view text) {
  const OrderedJson json = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("parameters") || !json.contains("rank_memory_bytes") ||
      !json["rank_memory_bytes"].is_object())
    return fail(ErrorCode::protocol, "no object with parameters and rank_memory_bytes");
  ModelCost cost;
  cost.version = text_at(json, "version");
  cost.isa = text_at(json, "isa");
  cost.architecture = text_at(json, "architecture");
  cost.preset = text_at(json, "preset");
  cost.parameters = size_at(json, "parameters");
  cost.active_parameters = size_at(json, "active_parameters");
  cost.trained_parameters = size_at(json, "trained_parameters");
  cost.flops_per_token = number_at(json, "flops_per_token");
  cost.bubble = number_at(json, "bubble");
  cost.note = text_at(json, "note");
  cost.stages = parse_stages(json);
  cost.threads = size_at(json, "threads");
  for (const auto& [precision, parts] : json["rank_memory_bytes"].items()) {
    ModelCost::Memory memory{precision, {}};
    if (parts.is_object())
      for (const auto& [name, bytes] : parts.items())
        if (name != "total" && memory.parts.size() < kMostParts)
          memory.parts.emplace_back(name, size_at(parts, name.c_str()));
    cost.memory.push_back(std::move(memory));
  }
  if (cost.memory.empty()) return fail(ErrorCode::protocol, "rank_memory_bytes is empty");
  return cost;
}

std::string with_commas(std::int64_t value) {
  std::string digits = fmt::format("{}", value);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  return digits;
}

std::string parameters_text(const ModelCost& cost) {
  std::string out = fmt::format("{} parameters", with_commas(cost.parameters));
  if (cost.active_parameters < cost.parameters)
    out += fmt::format(", a token meets {}", with_commas(cost.active_parameters));
  if (cost.trained_parameters < cost.parameters)
    out += fmt::format(", {} are trained", with_commas(cost.trained_parameters));
  return out;
}

std::string memory_table(const ModelCost& cost) {
  constexpr double kMebibyte = 1 << 20;
  std::string out;
  const auto row = [&](const std::string& title, const auto& cell) {
    out += fmt::format("    {:<16}", title);
    for (const ModelCost::Memory& of : cost.memory) out += fmt::format("  {:>10}", cell(of));
    out += '\n';
  };
  const auto mebibytes = [](std::int64_t bytes) {
    return with_commas(std::llround(static_cast<double>(bytes) / kMebibyte));
  };
  row("", [](const auto& of) { return of.precision; });
  for (const auto& [name, bytes] : cost.memory.front().parts)
    row(spaced(name), [&](const auto& of) { return mebibytes(of.part(name)); });
  row("total", [&](const auto& of) { return mebibytes(of.total()); });
  return out;
}

}  // namespace sortie::training
