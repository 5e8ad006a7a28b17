// Reads the times of a run from its files.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/base/json_member.h"
#include "common/training/event.h"
#include "launcher/report/goodput.h"

namespace sortie::launcher {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxEventLine = 4u << 20;

std::optional<double> finite(const Json& event, const char* key) {
  const auto it = event.find(key);
  if (it == event.end() || !it->is_number()) return std::nullopt;
  const double value = it->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

double known_or_0(double value) {
  return std::isfinite(value) && value > 0 ? value : 0;
}

/// Parses the number after `"key":` in a line that the launcher wrote.
template <class Number>
std::optional<Number> number_behind(std::string_view line, std::string_view key) {
  const std::size_t at = line.find(key);
  if (at == line.npos) return std::nullopt;
  Number value{};
  const char* begin = line.data() + at + key.size();
  const auto [end, error] = std::from_chars(begin, line.data() + line.size(), value);
  return error == std::errc{} && end != begin ? std::optional(value) : std::nullopt;
}

/// Reads the two needed numbers of a step line without parsing the JSON, because a long run has
/// millions of such lines. Returns false for other lines and for the first step, which must be
/// parsed.
bool take_step_line(std::string_view line, RunTimes& times) {
  if (line.find(R"("type":"step")") == line.npos || times.steps.empty()) return false;
  const auto step = number_behind<std::int64_t>(line, R"("step":)");
  const auto time = number_behind<double>(line, R"("time":)");
  if (!step || !time) return false;
  times.steps.push_back({*time, *step});
  times.last = std::max(times.last, *time);
  return true;
}

template <class Take>
void read_objects(const std::filesystem::path& path, Take take) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && !file.eof();) {
    if (line.size() > kMaxEventLine) continue;
    take(line);
  }
}

}  // namespace

void RunTimes::take_journal(const Json& event) {
  if (!event.is_object()) return;
  const auto time = finite(event, "time");
  if (!time) return;
  last = std::max(last, *time);
  if (!begun) begun = time;
  const std::string name = json_member::text(event, "event");
  const bool exited_0 = finite(event, "exit_code") == 0.0;
  if (name == "attempt") {
    attempts.push_back({*time, {}, {}, {}, false});
  } else if (name == "started" || name == "cause" || name == "attempt_end" || name == "end") {
    if (attempts.empty()) attempts.push_back({*begun, {}, {}, {}, false});
    Attempt& attempt = attempts.back();
    if (name == "started") attempt.ordered = time;
    if (name == "cause" && !attempt.failed)
      attempt.failed =
          std::max(attempt.begun, std::min(*time, finite(event, "died_at").value_or(*time)));
    if (name == "attempt_end" || name == "end") {
      if (!attempt.ended) attempt.ended = time;
      attempt.well = attempt.well || exited_0;
    }
    if (name == "end") ended = time;
  }
}

void RunTimes::take_metric(const Json& event) {
  if (!event.is_object()) return;
  const auto time = finite(event, "time");
  const auto known = training::read_event(event);
  if (!time || !known) return;
  last = std::max(last, *time);
  if (const auto* start = std::get_if<training::StartEvent>(&*known)) {
    begins.push_back({*time, start->step, start->resumed_from == training::kFromMemory});
  } else if (const auto* step = std::get_if<training::StepEvent>(&*known)) {
    if (steps.empty()) first_step = known_or_0(step->step_ms) / 1000;
    steps.push_back({*time, step->step});
  } else if (const auto* save = std::get_if<training::CheckpointEvent>(&*known)) {
    saves.push_back({*time - known_or_0(save->seconds), save->step, known_or_0(save->stall_seconds),
                     /*outlives=*/true, save->suspect});
  } else if (const auto* kept = std::get_if<training::MemoryCheckpointEvent>(&*known)) {
    const double stall = known_or_0(kept->stall_seconds);
    saves.push_back({*time - stall, kept->step, stall, /*outlives=*/false});
  } else if (std::holds_alternative<training::DoneEvent>(*known)) {
    done.push_back(*time);
  }
}

Goodput read_goodput(const std::filesystem::path& folder, std::optional<double> now) {
  RunTimes times;
  read_objects(folder / "events.jsonl", [&](const std::string& line) {
    times.take_journal(Json::parse(line, nullptr, /*allow_exceptions=*/false));
  });
  read_objects(folder / "metrics.jsonl", [&](const std::string& line) {
    if (!take_step_line(line, times))
      times.take_metric(Json::parse(line, nullptr, /*allow_exceptions=*/false));
  });
  return goodput_of(times, now);
}

}  // namespace sortie::launcher
