// The pure half of the console: text in, text out.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/printable.h"
#include "launcher/console/console.h"

namespace sortie::launcher {

std::string printable(std::string_view bytes) {
  return sortie::printable(bytes);
}

std::string printable_lines(std::string_view text) {
  return sortie::printable_lines(text);
}

std::string rank_line(std::uint32_t rank, std::string_view host, std::string_view text,
                      bool color) {
  return fmt::format(fmt::runtime(color ? "\x1b[2m[{} {}]\x1b[0m {}\n" : "[{} {}] {}\n"), rank,
                     host, shown_line(text));
}

std::string shown_line(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  if (const auto last = line.rfind('\r'); last != line.npos) line.remove_prefix(last + 1);
  return printable(line);
}

double json_number(const nlohmann::json& event, const char* key) {
  const auto it = event.find(key);
  return it != event.end() && it->is_number() ? it->get<double>() : std::nan("");
}

bool json_flag(const nlohmann::json& event, const char* key) {
  const auto it = event.find(key);
  return it != event.end() && it->is_boolean() && it->get<bool>();
}

std::string json_text(const nlohmann::json& event, const char* key) {
  const auto it = event.find(key);
  return it != event.end() && it->is_string() ? printable(it->get<std::string>()) : std::string();
}

std::optional<nlohmann::json> parse_event(std::string_view line) {
  // Writing JSON is recursive: 64 KiB of brackets would need megabytes of stack.
  constexpr int kMaxDepth = 16;
  bool too_deep = false;
  const auto watch = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  auto event = nlohmann::json::parse(line, watch, /*allow_exceptions=*/false);
  if (too_deep || !event.is_object()) return std::nullopt;
  const auto type = event.find("type");
  if (type == event.end() || !type->is_string()) return std::nullopt;
  return event;
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return "-";
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P"};
  std::size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  const int decimals = unit == 0 && value == std::floor(value) ? 0
                       : std::abs(value) < 9.995               ? 2
                       : std::abs(value) < 99.95               ? 1
                                                               : 0;
  return fmt::format("{:.{}f}{}", value, decimals, kUnits[unit]);
}

std::string short_time(double seconds) {
  if (!(seconds >= 0 && seconds < 1e12)) return "-";
  const auto whole = std::llround(seconds);
  if (whole >= 3600) return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
  if (whole >= 60) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}s", whole);
}

std::string step_line(const nlohmann::json& event) {
  const double step = json_number(event, "step"), steps = json_number(event, "steps");
  return fmt::format(
      "step {:>6.0f}/{:.0f}  loss {:7.4f}  lr {:.2e}  grad {:6.3f}  {:>6} tokens/s  {:>6}FLOP/s  "
      "{:5.0f} ms  ETA {}{}",
      step, steps, json_number(event, "loss"), json_number(event, "lr"),
      json_number(event, "grad_norm"), short_number(json_number(event, "tokens_per_s")),
      short_number(json_number(event, "flops")), json_number(event, "step_ms"),
      short_time(json_number(event, "eta_s")),
      json_flag(event, "skipped") ? "  SKIPPED (gradients not finite)" : "");
}

}  // namespace sortie::launcher
