// RunReport: what rank 0 tells of a run: to the launcher, and through it to people, files and
// trackers. The other ranks' reports say nothing.
#pragma once

#include <cmath>
#include <string>

#include "common/config/schema.h"
#include "common/config/validate.h"
#include "trainer/loop/memory_report.h"
#include "trainer/loop/rank_context.h"
#include "trainer/loop/step_report.h"
#include "trainer/loop/validation.h"
#include "trainer/metrics/event_sink.h"
#include "trainer/state/checkpointer.h"

namespace sortie::trainer {

class RunReport {
 public:
  RunReport(const config::JobConfig& job, const config::BatchPlan& batch, const RankContext& rank,
            EventSink& events)
      : job_(job), batch_(batch), rank_(rank), events_(events) {}

  void loaded(const LoadedCheckpoint& checkpoint);
  void start(const BitFacts& facts, const CpuFacts& cpu, const TrainingProgress& progress,
             const std::string& first_run);
  void step(const StepReport& report, const TrainingProgress& progress, double seconds,
            double trained_seconds);
  void evaluation(std::int64_t step, const Validation& validation);
  void checkpoint(std::int64_t step, const SavedCheckpoint& saved, bool best);
  void note(const std::string& text);
  void done(const TrainingProgress& progress, double validation_loss, double trained_seconds,
            const model::MemoryUse& memory);

 private:
  bool silent() const { return rank_.rank != 0; }

  const config::JobConfig& job_;
  const config::BatchPlan& batch_;
  const RankContext& rank_;
  EventSink& events_;
  double flops_per_token_ = 0.0;
  model::MemoryUse planned_;
  double last_loss_ = std::nan("");  // of a step of this process
};

}  // namespace sortie::trainer
