// RunReport: rank 0's reports of a run: events for the launcher (common/training/event.h), which
// shows and keeps their figures, and the same as lines on stdout, the run's readable log. Other
// ranks report only their profiles and last saves.
#pragma once

#include <chrono>
#include <cmath>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/config/schema.h"
#include "common/config/validate.h"
#include "common/training/event.h"
#include "trainer/loop/pace.h"
#include "trainer/loop/rank_context.h"
#include "trainer/loop/replica_check.h"
#include "trainer/loop/step_report.h"
#include "trainer/loop/validation.h"
#include "trainer/metrics/event_sink.h"
#include "trainer/planning/memory_use.h"
#include "trainer/state/checkpointer.h"

namespace sortie::trainer {

class RunReport {
 public:
  RunReport(const config::JobConfig& job, const config::BatchPlan& batch, const RankContext& rank,
            EventSink& events, bool validates);

  /// Which checkpoint the run starts from, and why.
  void loaded(const LoadedCheckpoint& checkpoint);
  void from_seed();
  void start(const BitFacts& facts, const CpuFacts& cpu, const TrainingProgress& progress,
             const std::string& first_run);
  void step(const StepReport& report, const TrainingProgress& progress, double seconds,
            double trained_seconds);
  void evaluation(const TrainingProgress& progress, const Validation& validation, double seconds);
  // Seconds for which training was held up; for the time left.
  void validation_took(double seconds) { pace_.validation(seconds); }
  void save_took(double seconds) { pace_.save(seconds); }
  void checkpoint(std::int64_t step, const SavedCheckpoint& saved, bool best);
  void rolled_back(const Checkpointer::RolledBack& back);
  void replicas_differ(std::int64_t step, const ReplicaDifference& difference);
  /// Only for the launcher and the metrics: a line for each would hide the others.
  void memory_checkpoint(const MemoryCheckpoints::Snapshot& snapshot);
  /// From any rank: its last save, after a collective has failed.
  void last_checkpoint(std::int64_t step, const SavedCheckpoint& saved);
  void round(const training::RoundEvent& event) { tell(event); }
  void note(const std::string& text);
  /// From every rank: the file that its trace was written to, or, with an empty `path`, the trace
  /// for the run folder.
  void profile(const nlohmann::json& trace_events, const std::string& path);
  void done(const TrainingProgress& progress, double validation_loss, double trained_seconds,
            const MemoryUse& memory);

 private:
  bool silent() const { return rank_.rank != 0; }
  /// Sends an event to the launcher and prints it as a line.
  void tell(const training::Event& event);
  void say(const StepReport& report, const training::StepEvent& event);

  const config::JobConfig& job_;
  const config::BatchPlan& batch_;
  const RankContext& rank_;
  EventSink& events_;
  double flops_per_token_ = 0.0;
  MemoryUse planned_;
  double last_loss_ = training::kUnknown;
  std::string resumed_from_;
  Pace pace_;
  std::chrono::steady_clock::time_point said_{};  // time of the last step line
};

}  // namespace sortie::trainer
