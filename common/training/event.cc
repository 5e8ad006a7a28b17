#include "common/training/event.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace sortie::training {
namespace {

using Json = nlohmann::json;

// The members of each event, used for reading and writing.

void visit(auto&& member,
           auto& e) requires std::same_as<std::remove_cvref_t<decltype(e)>, StartEvent> {
  member("architecture", e.architecture);
  member("parameters", e.parameters);
  member("flops_per_token", e.flops_per_token);
  member("precision", e.precision);
  member("isa", e.isa);
  member("cpu", e.cpu);
  member("gpu", e.gpu);
  member("threads", e.threads);
  member("world_size", e.world_size);
  member("global_batch_size", e.global_batch_size);
  member("gradient_accumulation_steps", e.gradient_accumulation_steps);
  member("sequence_length", e.sequence_length);
  member("step", e.step);
  member("steps", e.steps);
  member("save_dir", e.save_dir);
  member("resumed_from", e.resumed_from);
  member("first_run", e.first_run);
  member("best_loss", e.best_loss);
  member("best_step", e.best_step);
  member("planned_memory", e.planned_memory);
}

void visit(auto&& member,
           auto& e) requires std::same_as<std::remove_cvref_t<decltype(e)>, StepEvent> {
  member("step", e.step);
  member("steps", e.steps);
  member("loss", e.loss);
  member("lr", e.lr);
  member("grad_norm", e.grad_norm);
  member("step_ms", e.step_ms);
  member("data_wait_ms", e.data_wait_ms);
  member("tokens_per_s", e.tokens_per_s);
  member("flops", e.flops);
  member("mean_tokens_per_s", e.mean_tokens_per_s);
  member("eta_s", e.eta_s);
  member("skipped", e.skipped);
  member("consumed_tokens", e.consumed_tokens);
  member("balance_loss", e.balance_loss);
  member("mtp_loss", e.mtp_loss);
  member("dropped_choices", e.dropped_choices);
  member("batch_size", e.batch_size);
}

void visit(auto&& member,
           auto& e) requires std::same_as<std::remove_cvref_t<decltype(e)>, EvalEvent> {
  member("step", e.step);
  member("loss", e.loss);
  member("seconds", e.seconds);
  member("best_loss", e.best_loss);
  member("best_step", e.best_step);
  member("loss/", e.sets);
}

void visit(auto&& member,
           auto& e) requires std::same_as<std::remove_cvref_t<decltype(e)>, CheckpointEvent> {
  member("step", e.step);
  member("path", e.path);
  member("bytes", e.bytes);
  member("seconds", e.seconds);
  member("stall_seconds", e.stall_seconds);
  member("best", e.best);
  member("suspect", e.suspect);
}

void visit(auto&& member,
           auto& e) requires std::same_as<std::remove_cvref_t<decltype(e)>, MemoryCheckpointEvent> {
  member("step", e.step);
  member("bytes", e.bytes);
  member("stall_seconds", e.stall_seconds);
}

void visit(auto&& member,
           auto& e) requires std::same_as<std::remove_cvref_t<decltype(e)>, RollbackEvent> {
  member("from", e.from);
  member("to", e.to);
  member("skipped_samples", e.skipped_samples);
  member("reason", e.reason);
  member("path", e.path);
}

void visit(auto&& member,
           auto& e) requires std::same_as<std::remove_cvref_t<decltype(e)>, RoundEvent> {
  member("round", e.round);
  member("step", e.step);
  member("epoch", e.epoch);
  member("sites", e.sites);
  member("contributors", e.contributors);
  member("aborted", e.aborted);
  member("bytes_sent", e.bytes_sent);
  member("bytes_received", e.bytes_received);
  member("payload_bytes", e.payload_bytes);
  member("seconds", e.seconds);
  member("exchange_seconds", e.exchange_seconds);
  member("wait_seconds", e.wait_seconds);
  member("utilisation", e.utilisation);
  member("codec_db", e.codec_db);
}

void visit(auto&& member,
           auto& e) requires std::same_as<std::remove_cvref_t<decltype(e)>, FaultEvent> {
  member("step", e.step);
  member("rank", e.rank);
  member("host", e.host);
  member("what", e.what);
}

void visit(auto&& member,
           auto& e) requires std::same_as<std::remove_cvref_t<decltype(e)>, NoteEvent> {
  member("text", e.text);
}

void visit(auto&& member,
           auto& e) requires std::same_as<std::remove_cvref_t<decltype(e)>, ProfileEvent> {
  member("rank", e.rank);
  member("host", e.host);
  member("path", e.path);
}

void visit(auto&& member,
           auto& e) requires std::same_as<std::remove_cvref_t<decltype(e)>, DoneEvent> {
  member("step", e.step);
  member("steps", e.steps);
  member("loss", e.loss);
  member("validation_loss", e.validation_loss);
  member("seconds", e.seconds);
  member("peak_memory_bytes", e.peak_memory_bytes);
  member("memory", e.memory);
  member("planned_memory", e.planned_memory);
  member("events_dropped", e.events_dropped);
}

/// A whole number in any JSON form (3, 3.0), clamped to what a double represents exactly.
std::int64_t whole(const Json& value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  const double number = value.get<double>();
  if (std::isnan(number)) return 0;
  return static_cast<std::int64_t>(std::clamp(number, -kExact, kExact));
}

struct Reader {
  const Json& json;

  void operator()(const char* key, auto& target) const {
    const auto it = json.find(key);
    if (it != json.end()) take(*it, target);
  }
  /// Reads every member whose name begins with `prefix`; the rest of the name becomes the key.
  void operator()(const char* prefix, std::map<std::string, double>& target) const {
    for (const auto& [key, value] : json.items())
      if (key.starts_with(prefix) && value.is_number())
        target[key.substr(std::string_view(prefix).size())] = value.get<double>();
  }

 private:
  static void take(const Json& value, std::string& target) {
    if (value.is_string()) target = value.get<std::string>();
  }
  static void take(const Json& value, bool& target) {
    if (value.is_boolean()) target = value.get<bool>();
  }
  static void take(const Json& value, double& target) {
    if (value.is_number()) target = value.get<double>();
  }
  static void take(const Json& value, std::int64_t& target) {
    if (value.is_number()) target = whole(value);
  }
  static void take(const Json& value, MemoryParts& target) {
    if (!value.is_object()) return;
    for (const auto& [name, bytes] : value.items())
      if (bytes.is_number()) target[name] = whole(bytes);
  }
  template <class T>
  static void take(const Json& value, std::optional<T>& target) {
    if (value.is_number()) take(value, target.emplace());
  }
};

struct Writer {
  Json& json;

  void operator()(const char* key, const auto& value) const { json[key] = value; }
  template <class T>
  void operator()(const char* key, const std::optional<T>& value) const {
    if (value) json[key] = *value;
  }
  void operator()(const char* prefix, const std::map<std::string, double>& values) const {
    for (const auto& [name, value] : values) json[prefix + name] = value;
  }
  /// Empty texts and parts are omitted.
  void operator()(const char* key, const std::string& value) const {
    if (!value.empty()) json[key] = value;
  }
  void operator()(const char* key, const MemoryParts& value) const {
    if (!value.empty()) json[key] = value;
  }
};

template <class Which>
void read_as(const std::string& type, const Json& json, std::optional<Event>& event) {
  if (type != Which::kType) return;
  Which value;
  visit(Reader{json}, value);
  event = std::move(value);
}

template <class... Which>
std::optional<Event> read_one_of(const std::string& type, const Json& json,
                                 const std::variant<Which...>*) {
  std::optional<Event> event;
  (read_as<Which>(type, json, event), ...);
  return event;
}

}  // namespace

nlohmann::json to_json(const Event& event) {
  return std::visit(
      [](const auto& value) {
        Json json = {{"type", value.kType}};
        visit(Writer{json}, value);
        return json;
      },
      event);
}

std::optional<Event> read_event(const nlohmann::json& json) {
  const auto type = json.is_object() ? json.find("type") : json.end();
  if (type == json.end() || !type->is_string()) return std::nullopt;
  return read_one_of(type->get<std::string>(), json, static_cast<const Event*>(nullptr));
}

}  // namespace sortie::training
