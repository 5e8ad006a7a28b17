// Opens the data that [data] names, before the first step of a run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "common/config/validate.h"
#include "trainer/loop/validation.h"
#include "trainer/samples/sample_source.h"
#include "trainer/storage/work_progress.h"

namespace sortie::trainer {

struct OpenedData {
  std::unique_ptr<SampleSource> training;
  std::vector<std::unique_ptr<SampleSource>> validation;
  std::vector<ValidationSet> validation_sets;  // refer to `validation`
  std::vector<std::string> notes;              // for the log of rank 0: what was cut or left out
  /// Whether training uses conversations in ChatML; whether training or validation does.
  bool trains_chatml = false, reads_chatml = false;
};

/// An error names the key whose value caused it. `sites`: number of sites that share the training
/// samples; 0 or 1 = this run alone. `threads` threads tokenize conversations; `progress` receives
/// their progress.
Result<OpenedData> open_data(const config::JobConfig& job, const config::BatchPlan& batch,
                             std::int64_t sites, int threads, const OnProgress& progress);

}  // namespace sortie::trainer
