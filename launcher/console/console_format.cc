// The pure half of the console: formats text.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/printable.h"
#include "launcher/console/console.h"

namespace sortie::launcher {
std::string rank_line(std::uint32_t rank, std::string_view host, std::string_view text, bool color,
                      std::string_view site) {
  return fmt::format(fmt::runtime(color ? "\x1b[2m[{}{}{} {}]\x1b[0m {}\n" : "[{}{}{} {}] {}\n"),
                     site, site.empty() ? "" : " ", rank, host, shown_line(text));
}

std::string shown_line(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  if (const auto last = line.rfind('\r'); last != line.npos) line.remove_prefix(last + 1);
  return printable(line);
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

}  // namespace sortie::launcher
