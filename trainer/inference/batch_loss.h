// BatchLoss: accumulates the loss of batches. On a GPU each batch runs as one CUDA graph.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "trainer/tensor/repeated_work.h"

namespace sortie::trainer {

class BatchLoss {
 public:
  /// Adds the sum and the count of a batch to `loss` (f64 [2]), as LanguageModel::loss() does.
  /// Tokens and targets are i32 [B, T].
  using Pass = std::function<void(const Tensor& tokens, const Tensor& targets, Tensor& loss)>;

  /// Without `graphs`, ops are always launched one by one.
  explicit BatchLoss(bool graphs = true) {
    if (!graphs) work_.never_capture();
  }
  /// Adds what `pass` computes for the batch to `loss` (f64 [2]). Every call must pass the same
  /// work: the graph of the first calls is not compared with that of a later one. Batches of the
  /// first batch's shape run as a graph; others, such as a smaller last batch, run op by op.
  void add(ExecutionContext& context, std::span<const std::int32_t> tokens,
           std::span<const std::int32_t> targets, Shape shape, const Pass& pass, Tensor& loss);
  std::optional<std::string> take_failure() { return work_.take_failure(); }

 private:
  RepeatedWork work_{"the pass of a batch"};
  Tensor tokens_, targets_, loss_;
};

}  // namespace sortie::trainer
