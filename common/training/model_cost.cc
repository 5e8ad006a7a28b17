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

/// More parts than an answer has, and more bytes than any machine has: their sum is a number yet.
constexpr std::size_t kMostParts = 64;
constexpr std::int64_t kMostBytes = 100'000'000'000'000'000;

/// JSON's numbers may be anything; sizes are whole and not negative.
std::int64_t size_at(const OrderedJson& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return 0;
  return std::clamp<std::int64_t>(found->get<std::int64_t>(), 0, kMostBytes);
}

std::string text_at(const OrderedJson& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
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

nlohmann::ordered_json to_json(const ModelCost& cost) {
  OrderedJson memory = OrderedJson::object();
  for (const ModelCost::Memory& of : cost.memory) {
    OrderedJson bytes = {{"total", of.total()}};
    for (const auto& [part, size] : of.parts) bytes[part] = size;
    memory[of.precision] = bytes;
  }
  return {{"version", cost.version},
          {"isa", cost.isa},
          {"architecture", cost.architecture},
          {"preset", cost.preset},
          {"parameters", cost.parameters},
          {"active_parameters", cost.active_parameters},
          {"trained_parameters", cost.trained_parameters},
          {"flops_per_token", cost.flops_per_token},
          {"threads", cost.threads},
          {"rank_memory_bytes", memory}};
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
  if (const auto found = json.find("flops_per_token"); found != json.end() && found->is_number())
    cost.flops_per_token = found->get<double>();
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
