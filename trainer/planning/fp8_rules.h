// Rules of model.precision = "fp8": what it requires of a job, and what of a model stays in bf16.
#pragma once

#include <string>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "trainer/nn/parameter_store.h"

namespace sortie::trainer {

/// ErrorCode::config if the precision is "fp8" and the number of rows that layers multiply in a
/// micro-batch is not a multiple of ops::kFp8Unit: then nothing would run in FP8.
Result<> check_fp8_rows(const config::JobConfig& job, std::int64_t micro_batch_size);

/// What a store that multiplies in FP8 multiplies in bf16, besides what always is (head,
/// embeddings, norms, routers, low-rank updates).
struct Bf16Products {
  std::string first;                // of the parameters whose sizes do not allow FP8
  std::int64_t rows = 0, cols = 0;  // its sizes
  std::int64_t count = 0;           // of these parameters
  bool experts = false;             // routed experts

  /// Adds those of a later pipeline stage.
  void add(const Bf16Products& later);
  /// One line that says which they are, and why; empty if there are none.
  std::string text() const;
};
/// Call after finalize(). Finds none if the store does not multiply in FP8.
Bf16Products bf16_products(const ParameterStore& store);

}  // namespace sortie::trainer
