// Section times of some steps, written as a Chrome trace (chrome://tracing, Perfetto).
#pragma once

#include <chrono>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "trainer/loop/rank_context.h"

namespace sortie::trainer {

/// Path to which a rank writes its own trace: profiler.profiler_output, with the rank in the name
/// if there are several. Empty: the trace is sent to the launcher, which writes it to the run
/// folder.
std::filesystem::path profile_path(const config::ProfilerConfig& config, const RankContext& rank);
/// Checks that a profile can be written there, if one is requested. The error names the config key.
Result<> check_profile_path(const config::ProfilerConfig& config, const RankContext& rank);

class Profiler {
 public:
  Profiler(const config::ProfilerConfig& config, int rank) : config_(config), rank_(rank) {}

  /// Call at the start of each step; `step` counts from 1.
  void begin_step(std::int64_t step);
  bool active() const { return active_; }
  /// Call after the last step of the run, even if not all steps to profile were done.
  void end();
  /// Whether the profiled steps are over and neither trace() nor write() was called.
  bool complete() const { return complete_ && !written_; }
  /// The events of a Chrome trace, one object each.
  nlohmann::json trace();
  /// The whole trace as a file.
  Result<> write(const std::filesystem::path& path);

  /// Records the reduction of so many bytes of gradients, which runs concurrently with the
  /// sections. No-op while the profiler is inactive.
  void add_reduction(std::int64_t bytes, std::chrono::steady_clock::time_point begin,
                     std::chrono::steady_clock::time_point end);

  /// Records from construction to destruction while the profiler is active.
  class Section {
   public:
    Section(Profiler& profiler, const char* name);
    ~Section();
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;

   private:
    Profiler& profiler_;
    const char* name_;
    std::chrono::steady_clock::time_point begin_;
  };

 private:
  struct Entry {
    const char* name;
    std::int64_t step, begin_us, duration_us;
    std::int64_t bytes = 0;  // of a reduction; else 0
  };
  const config::ProfilerConfig& config_;
  int rank_;
  bool active_ = false, complete_ = false, written_ = false;
  std::int64_t step_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace sortie::trainer
