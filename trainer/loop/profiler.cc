#include "trainer/loop/profiler.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"

namespace sortie::trainer {
namespace {
std::int64_t microseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}
}  // namespace

std::filesystem::path profile_path(const config::ProfilerConfig& config, const RankContext& rank) {
  const std::filesystem::path named = config.profiler_output;
  if (named.empty())
    return rank.socket_path.empty() ? fmt::format("profile-rank-{}.json", rank.rank) : "";
  if (rank.world_size == 1) return named;
  return named.parent_path() /
         fmt::format("{}-rank-{}{}", named.stem().string(), rank.rank, named.extension().string());
}

Result<> check_profile_path(const config::ProfilerConfig& config, const RankContext& rank) {
  std::filesystem::path probe = profile_path(config, rank);
  if (config.profile_steps == 0 || probe.empty()) return {};
  probe += fmt::format(".check-{}", rank.rank);
  if (auto written = write_file_atomic(probe, ""); !written)
    return std::unexpected(with_context(std::move(written).error(), "profiler.profiler_output"));
  std::error_code ignored;
  std::filesystem::remove(probe, ignored);
  return {};
}

void Profiler::begin_step(std::int64_t step) {
  step_ = step;
  const std::int64_t first = config_.profile_start_at_step;
  const bool inside =
      config_.profile_steps > 0 && step >= first && step < first + config_.profile_steps;
  if (active_ && !inside) complete_ = true;
  active_ = inside;
}

Profiler::Section::Section(Profiler& profiler, const char* name)
    : profiler_(profiler), name_(name), begin_(std::chrono::steady_clock::now()) {}

Profiler::Section::~Section() {
  if (!profiler_.active_) return;
  const auto end = std::chrono::steady_clock::now();
  profiler_.entries_.push_back({name_, profiler_.step_, microseconds(begin_.time_since_epoch()),
                                microseconds(end - begin_)});
}

void Profiler::end() {
  complete_ = complete_ || active_;
  active_ = false;
}

nlohmann::json Profiler::trace() {
  nlohmann::json events = nlohmann::json::array();
  for (const Entry& entry : entries_)
    events.push_back({{"name", entry.name},
                      {"ph", "X"},
                      {"pid", rank_},
                      {"tid", 0},
                      {"ts", entry.begin_us},
                      {"dur", entry.duration_us},
                      {"args", {{"step", entry.step}}}});
  written_ = true;
  return events;
}

Result<> Profiler::write(const std::filesystem::path& path) {
  return write_file_atomic(path, nlohmann::json{{"traceEvents", trace()}}.dump());
}

}  // namespace sortie::trainer
