#include "trainer/loop/profiler.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "common/base/fd.h"

namespace sortie::trainer {
namespace {
std::int64_t microseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}
}  // namespace

std::filesystem::path profile_path(const config::ProfilerConfig& config, const RankContext& rank) {
  std::filesystem::path named = config.profiler_output;
  if (named.empty())
    return rank.socket_path.empty() ? fmt::format("profile-rank-{}.json", rank.rank) : "";
  if (rank.world_size == 1) return named;
  return named.parent_path() /
         fmt::format("{}-rank-{}{}", named.stem().string(), rank.rank, named.extension().string());
}

Result<> check_profile_path(const config::ProfilerConfig& config, const RankContext& rank) {
  const std::filesystem::path path = profile_path(config, rank);
  if (config.profile_steps == 0 || path.empty()) return {};
  // Under a separate name: the profile of an earlier run is kept until there is a new one.
  const std::string probe = fmt::format("{}.check-{}", path.string(), ::getpid());
  const Fd file(::open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) {
    Error error = os_error(
        errno, fmt::format("profiler.profiler_output: {} can not be written", path.string()));
    error.message += "; name a file in a folder that exists and is writable on every host";
    return std::unexpected(std::move(error));
  }
  ::unlink(probe.c_str());
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

void Profiler::add_reduction(std::int64_t bytes, std::chrono::steady_clock::time_point begin,
                             std::chrono::steady_clock::time_point end) {
  if (!active_) return;
  entries_.push_back({"reduction", step_, microseconds(begin.time_since_epoch()),
                      microseconds(end - begin), bytes});
}

void Profiler::end() {
  complete_ = complete_ || active_;
  active_ = false;
}

nlohmann::json Profiler::trace() {
  nlohmann::json events = nlohmann::json::array();
  for (const Entry& entry : entries_) {
    const bool beside = entry.bytes > 0;  // in a separate row
    nlohmann::json& event = events.emplace_back(nlohmann::json{{"name", entry.name},
                                                               {"ph", "X"},
                                                               {"pid", rank_},
                                                               {"tid", beside ? 1 : 0},
                                                               {"ts", entry.begin_us},
                                                               {"dur", entry.duration_us},
                                                               {"args", {{"step", entry.step}}}});
    if (beside) event["args"]["bytes"] = entry.bytes;
  }
  written_ = true;
  return events;
}

Result<> Profiler::write(const std::filesystem::path& path) {
  return write_file_atomic(path, nlohmann::json{{"traceEvents", trace()}}.dump());
}

}  // namespace sortie::trainer
