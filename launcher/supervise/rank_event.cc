#include "launcher/supervise/rank_event.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "launcher/console/console.h"

namespace sortie::launcher {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxEventBytes = 64u << 10;  // the limit of wire/message.h

constexpr std::array<std::string_view, 7> kKnownTypes = {
    "start", "step", "eval", "checkpoint", "memory_checkpoint", "note", "done"};
constexpr std::array<std::string_view, 2> kStepKeys = {"step", "steps"};
constexpr std::array<std::string_view, 8> kTextKeys = {
    "first_run", "architecture", "precision", "cpu", "gpu", "isa", "path", "text"};
constexpr std::array<std::string_view, 24> kNumberKeys = {
    "loss",         "lr",         "grad_norm",       "tokens_per_s",
    "flops",        "step_ms",    "eta_s",           "bytes",
    "seconds",      "parameters", "stall_seconds",   "mean_tokens_per_s",
    "threads",      "world_size", "sequence_length", "global_batch_size",
    "data_wait_ms", "best_loss",  "validation_loss", "flops_per_token",
    "balance_loss", "mtp_loss",   "dropped_choices", "consumed_tokens"};
constexpr std::string_view kLossOfSet = "loss/";
constexpr std::array<std::string_view, 2> kFlagKeys = {"skipped", "best"};

template <std::size_t size>
bool contains(const std::array<std::string_view, size>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// Fields without which an event of that type says nothing.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kRequired = {
    {{"step", "step"},
     {"eval", "step"},
     {"eval", "loss"},
     {"checkpoint", "step"},
     {"checkpoint", "path"},
     {"memory_checkpoint", "step"}}};

/// Whether Sortie reads the field as a number.
bool is_number_key(std::string_view key) {
  return contains(kNumberKeys, key) || key.starts_with(kLossOfSet);
}

/// Whether the value of a number's field is none: null is how JSON writes a number that is not
/// finite. No measurement is larger than the limit; hundreds of digits would spoil tables.
bool is_no_number(const Json& value) {
  constexpr double kLargest = 1e24;
  return value.is_null() || (value.is_number() && std::abs(value.get<double>()) > kLargest);
}

/// The first required field that is missing; empty if none is.
std::string_view missing_field(std::string_view type, const Json& event) {
  for (const auto& [of, key] : kRequired) {
    if (of != type) continue;
    const auto field = event.find(key);
    if (field == event.end() || (field->is_null() && !is_number_key(key))) return key;
  }
  return "";
}

/// Whether `value` is a step number that fits into the int64 of trackers and journals.
bool is_step(const Json& value) {
  if (value.is_number_unsigned())
    return value.get<std::uint64_t>() <=
           static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return value.is_number_integer() && value.get<std::int64_t>() >= 0;
}

/// The type that the field must have; empty if it has it, or if Sortie does not read the field.
std::string_view expected(std::string_view key, const Json& value) {
  if (contains(kStepKeys, key)) return is_step(value) ? "" : "a whole number, 0 or more";
  if (contains(kTextKeys, key)) return value.is_string() ? "" : "a text";
  if (is_number_key(key)) return value.is_number() ? "" : "a number";
  if (contains(kFlagKeys, key)) return value.is_boolean() ? "" : "true or false";
  return "";
}

}  // namespace

Result<Json> check_rank_event(std::string_view line) {
  if (line.size() > kMaxEventBytes)
    return fail(ErrorCode::data,
                fmt::format("{} bytes; {} are the limit", line.size(), kMaxEventBytes));
  auto event = parse_event(line);
  if (!event)
    return fail(ErrorCode::data,
                "no JSON object with a text as its \"type\", or nested too deeply");
  const std::string type = event->at("type").get<std::string>();
  if (!contains(kKnownTypes, type)) return std::move(*event);
  if (const std::string_view missing = missing_field(type, *event); !missing.empty())
    return fail(ErrorCode::data, fmt::format("\"{}\": {} is missing", type, missing));
  for (auto field = event->begin(); field != event->end();) {
    if (field->is_null() || (is_number_key(field.key()) && is_no_number(*field))) {
      field = event->erase(field);
      continue;
    }
    const std::string_view wanted = expected(field.key(), *field);
    if (!wanted.empty())
      return fail(ErrorCode::data, fmt::format("\"{}\": {} is {}; it must be {}", type, field.key(),
                                               printable(field->dump().substr(0, 60)), wanted));
    ++field;
  }
  return std::move(*event);
}

}  // namespace sortie::launcher
