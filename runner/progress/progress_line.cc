#include "runner/progress/progress_line.h"

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/json_member.h"

namespace sortie::runner {
namespace {

/// Longer lines are not progress lines: they have unknown members.
constexpr std::size_t kMaxProgressBytes = 1024;

/// Reads the number under `key`; leaves `value` unchanged if it is missing. Returns false if it is
/// no unsigned integer.
bool take_number(const nlohmann::json& object, const char* key, std::uint64_t& value) {
  const auto it = object.find(key);
  if (it == object.end()) return true;
  if (!it->is_number_unsigned()) return false;
  value = it->get<std::uint64_t>();
  return true;
}

}  // namespace

LineKind read_progress_line(std::string_view line, ProgressLine& progress) {
  if (line.size() > kMaxProgressBytes || !line.contains("\"progress\"")) return LineKind::event;
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json_member::text(json, "type") != "progress") return LineKind::event;
  ProgressLine read;
  const bool numbers = json.contains("step") && take_number(json, "step", read.step) &&
                       take_number(json, "sequence", read.sequence) &&
                       take_number(json, "ticks", read.ticks) &&
                       take_number(json, "own_us", read.own_us);
  if (!numbers) return LineKind::broken;
  if (json.contains("section")) {
    const auto section = training::section_of(json_member::text(json, "section"));
    if (!section) return LineKind::broken;
    read.section = *section;
  }
  progress = read;
  return LineKind::progress;
}

}  // namespace sortie::runner
