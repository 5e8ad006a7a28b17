// BatchLoss: the loss of one batch after another, which a GPU is given as one CUDA graph each.
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
  /// loss f64 [2] += that of a batch, as LanguageModel::loss() has it; tokens, targets i32 [B, T].
  using Pass = std::function<void(const Tensor& tokens, const Tensor& targets, Tensor& loss)>;

  /// Without `graphs` ops are always given one by one.
  explicit BatchLoss(bool graphs = true) {
    if (!graphs) work_.never_capture();
  }
  /// loss f64 [2] += what `pass` computes of the batch. All passes are the same work; graphs are
  /// those of batches of the first one's shape, as the last batch may be a smaller one.
  void add(ExecutionContext& context, std::span<const std::int32_t> tokens,
           std::span<const std::int32_t> targets, Shape shape, const Pass& pass, Tensor& loss);
  std::optional<std::string> take_failure() { return work_.take_failure(); }

 private:
  RepeatedWork work_{"the pass of a batch"};
  Tensor tokens_, targets_, loss_;
};

}  // namespace sortie::trainer
