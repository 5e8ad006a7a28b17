#include "launcher/health/health_event.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/health/judge.h"
#include "launcher/console/console.h"

namespace sortie::launcher {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostCode = 1'000'000, kMostGpu = 4095;
constexpr std::int64_t kMostCount = std::int64_t{1} << 40, kMostAgeMs = std::int64_t{1} << 40;

std::unexpected<Error> bad_member(const char* key, std::string_view wanted) {
  return fail(ErrorCode::data, fmt::format("\"{}\" must be {}", key, wanted));
}

/// Reads an integer in [0, most] under `key`; `otherwise` if it is missing.
Result<std::int64_t> whole(const Json& object, const char* key, std::int64_t most,
                           std::int64_t otherwise) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return otherwise;
  const bool fits =
      it->is_number_unsigned() && it->get<std::uint64_t>() <= static_cast<std::uint64_t>(most);
  if (!fits) return bad_member(key, fmt::format("a whole number up to {}", most));
  return it->get<std::int64_t>();
}

Result<std::string> words(const Json& object, const char* key, std::size_t bytes) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return std::string();
  if (!it->is_string()) return bad_member(key, "a text");
  return printable(it->get<std::string>().substr(0, bytes));
}

}  // namespace

Result<health::Finding> finding_of(const Json& object) {
  health::Finding finding;
  SORTIE_ASSIGN_OR_RETURN(const std::string kind_text, words(object, "kind", 32));
  const auto kind = health::kind_of(kind_text);
  if (!kind) return bad_member("kind", "a value that this version of Sortie knows");
  finding.kind = *kind;
  SORTIE_ASSIGN_OR_RETURN(const std::int64_t code, whole(object, "code", kMostCode, 0));
  finding.code = static_cast<int>(code);
  SORTIE_ASSIGN_OR_RETURN(finding.device, words(object, "device", health::kMaxDeviceBytes));
  SORTIE_ASSIGN_OR_RETURN(const std::int64_t gpu, whole(object, "gpu", kMostGpu, -1));
  if (gpu >= 0) finding.gpu = static_cast<int>(gpu);
  SORTIE_ASSIGN_OR_RETURN(finding.uuid, words(object, "uuid", health::kMaxUuidBytes));
  SORTIE_ASSIGN_OR_RETURN(finding.source, words(object, "source", 16));
  SORTIE_ASSIGN_OR_RETURN(finding.text, words(object, "text", health::kMaxTextBytes));
  SORTIE_ASSIGN_OR_RETURN(const std::int64_t recovery,
                          whole(object, "recovery", health::kRecoverySystemReboot, -1));
  if (recovery >= 0) finding.recovery = static_cast<int>(recovery);
  SORTIE_ASSIGN_OR_RETURN(const std::int64_t count, whole(object, "count", kMostCount, 1));
  finding.count = static_cast<std::uint64_t>(std::max<std::int64_t>(count, 1));
  if (const auto it = object.find("fatal"); it != object.end() && !it->is_null()) {
    if (!it->is_boolean()) return bad_member("fatal", "true or false");
    finding.fatal = it->get<bool>();
  }
  if (const auto it = object.find("value"); it != object.end() && !it->is_null()) {
    if (!it->is_number() || !std::isfinite(it->get<double>()))
      return bad_member("value", "a number");
    finding.value = it->get<double>();
  }
  return finding;
}

nlohmann::ordered_json health_json(const std::string& host, const health::Finding& finding) {
  const health::Judgement judgement = health::judge(finding);
  nlohmann::ordered_json json = {{"host", host}, {"kind", health::kind_name(finding.kind)}};
  if (finding.code != 0) json["code"] = finding.code;
  if (!finding.device.empty()) json["device"] = finding.device;
  if (finding.gpu) json["gpu"] = *finding.gpu;
  if (!finding.uuid.empty()) json["uuid"] = finding.uuid;
  if (!finding.source.empty()) json["source"] = finding.source;
  if (!finding.text.empty()) json["text"] = finding.text;
  if (finding.fatal) json["fatal"] = *finding.fatal;
  if (finding.recovery) json["recovery"] = *finding.recovery;
  if (finding.count != 1) json["count"] = finding.count;
  if (finding.value != 0) json["value"] = finding.value;
  json["class"] = health::class_name(judgement.kind);
  json["action"] = health::action_name(judgement.action);
  json["what"] = judgement.what;
  const std::string command = health::remedy_command(judgement.remedy, host, finding);
  if (!command.empty()) json["command"] = command;
  return json;
}

Result<std::optional<health::Finding>> HealthIntake::take(std::string_view text, double now) {
  if (text.size() > kMaxBytes)
    return fail(ErrorCode::data, fmt::format("{} bytes; {} are the limit", text.size(), kMaxBytes));
  const auto object = parse_event(text);
  if (!object || object->at("type") != "health")
    return fail(ErrorCode::data, "no JSON object of type \"health\", or nested too deeply");
  SORTIE_ASSIGN_OR_RETURN(const std::int64_t number, whole(*object, "n", std::int64_t{1} << 53, 0));
  SORTIE_ASSIGN_OR_RETURN(const std::int64_t age_ms, whole(*object, "age_ms", kMostAgeMs, 0));
  SORTIE_ASSIGN_OR_RETURN(health::Finding finding, finding_of(*object));
  if (number != 0) {
    if (static_cast<std::uint64_t>(number) <= number_) return std::nullopt;
    number_ = static_cast<std::uint64_t>(number);
  }
  while (!times_.empty() && now - times_.front() >= 60) times_.pop_front();
  if (times_.size() >= kMostAMinute) {
    ++left_out_;
    return std::nullopt;
  }
  times_.push_back(now);
  age_ = static_cast<double>(age_ms) / 1000;
  return std::optional(std::move(finding));
}

std::uint64_t HealthIntake::left_out() {
  return std::exchange(left_out_, 0);
}

std::optional<std::set<int>> gpus_of(const HostPlan& host) {
  std::set<int> gpus;
  for (const RankPlan& rank : host.ranks) {
    const auto devices =
        std::ranges::find(rank.env, "CUDA_VISIBLE_DEVICES", &Environment::value_type::first);
    if (devices == rank.env.end()) return std::nullopt;
    std::string_view list = devices->second;
    while (!list.empty()) {
      const std::string_view item = list.substr(0, list.find(','));
      int number = -1;
      const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), number);
      if (error != std::errc{} || end != item.data() + item.size()) return std::nullopt;  // a UUID
      gpus.insert(number);
      list.remove_prefix(std::min(list.size(), item.size() + 1));
    }
  }
  return gpus.empty() ? std::nullopt : std::optional(gpus);
}

}  // namespace sortie::launcher
