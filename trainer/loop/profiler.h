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

/// Where a rank writes its own trace: profiler.profiler_output, with the rank in its name where
/// there are several. Empty: it goes to the launcher, into the run folder.
std::filesystem::path profile_path(const config::ProfilerConfig& config, const RankContext& rank);
/// Where a profile is asked for: whether it can be written there. The Error names the key.
Result<> check_profile_path(const config::ProfilerConfig& config, const RankContext& rank);

class Profiler {
 public:
  Profiler(const config::ProfilerConfig& config, int rank) : config_(config), rank_(rank) {}

  /// Call at the start of each step; `step` counts from 1.
  void begin_step(std::int64_t step);
  bool active() const { return active_; }
  /// After the last step of all, whether or not the profiled ones are over.
  void end();
  /// True once, after the last profiled step: time for trace() or write().
  bool complete() const { return complete_ && !written_; }
  /// The events of a Chrome trace, one object each.
  nlohmann::json trace();
  /// The whole trace as a file.
  Result<> write(const std::filesystem::path& path);

  /// What goes on beside the sections, while the profiler is active: the reduction of so many bytes
  /// of gradients.
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
    std::int64_t bytes = 0;  // of what goes on beside the sections
  };
  const config::ProfilerConfig& config_;
  int rank_;
  bool active_ = false, complete_ = false, written_ = false;
  std::int64_t step_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace sortie::trainer
