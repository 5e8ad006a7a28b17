// Validation: the loss of fixed samples, the same on every number of ranks.
#pragma once

#include <string>
#include <vector>

#include "common/config/schema.h"
#include "trainer/inference/batch_loss.h"
#include "trainer/loop/pipeline_step.h"
#include "trainer/metrics/progress_marks.h"
#include "trainer/samples/sample_source.h"

namespace sortie::trainer {

/// A validation set; the source must outlive its use.
struct ValidationSet {
  std::string name;
  SampleSource* source;
};

/// Losses in nats per token that counts.
struct Validation {
  struct Set {
    std::string name;
    double loss = 0.0;
  };
  double loss = 0.0;  // the mean over the sets
  std::vector<Set> sets{};
};

/// What a validation loss is the loss of, as a positive number: the sets by name, with what is in
/// their files, the number of samples, and how a sequence is made of them. Losses with different
/// numbers can not be compared. 0 without sets.
std::int64_t validation_measure(const std::vector<ValidationSet>& sets,
                                const config::JobConfig& job);

struct ValidationOptions {
  std::int64_t samples = 0;  // of each set, from its start; 0 = all of it
  std::int64_t rows = 1;     // sequences of a forward pass
};

/// Collective; the same result on every rank. Which samples are in a forward pass does not depend
/// on the number of ranks, nor does the order of the sums but where ranks share a sequence, so all
/// layouts without that give the same bits. The
/// stages of a model pass them on to each other as they do in training. Each forward pass is a tick
/// of `marks`. `losses`, of all validations of a run, may be null: then a GPU is given ops one by
/// one.
Result<Validation> validate(const std::vector<ValidationSet>& sets,
                            const ValidationOptions& options, ExecutionContext& context,
                            PipelineStep& passes, const Layout& layout, ProgressMarks& marks,
                            BatchLoss* losses = nullptr);

}  // namespace sortie::trainer
