// Validation: the loss of fixed samples, independent of the number of ranks.
#pragma once

#include <optional>
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

/// Returns a positive number that identifies what a validation loss measures: the names of the
/// sets, the contents of their files, the number of samples, and how sequences are made of them.
/// Losses with different numbers can not be compared. 0 without sets.
std::int64_t validation_measure(const std::vector<ValidationSet>& sets,
                                const config::JobConfig& job);

struct ValidationOptions {
  std::int64_t samples = 0;  // of each set, from its start; 0 = all of it
  std::int64_t rows = 1;     // sequences of a forward pass
};

/// The losses of the batches of all validations of a run. Sequences of documents and of one text
/// take different passes, so that a GPU repeats each of the two as a graph of its own.
class ValidationLosses {
 public:
  /// Without `graphs`, ops are always launched one by one.
  explicit ValidationLosses(bool graphs) : plain_(graphs), packed_(graphs) {}
  BatchLoss& of(const SampleSource& source) { return source.packed() ? packed_ : plain_; }
  std::optional<std::string> take_failure() {
    auto failure = plain_.take_failure();
    return failure ? failure : packed_.take_failure();
  }

 private:
  BatchLoss plain_, packed_;
};

/// Computes the losses of the sets. Collective; the same result on every rank. The samples of a
/// forward pass do not depend on the number of ranks. Nor does the order of sums, unless ranks
/// share a sequence: all layouts without that give the same bits. Pipeline stages exchange hidden
/// states as in training. Each forward pass is a tick of `marks`. If `losses` is nullptr, a GPU
/// runs the passes op by op.
Result<Validation> validate(const std::vector<ValidationSet>& sets,
                            const ValidationOptions& options, ExecutionContext& context,
                            PipelineStep& passes, const Layout& layout, ProgressMarks& marks,
                            ValidationLosses* losses = nullptr);

}  // namespace sortie::trainer
