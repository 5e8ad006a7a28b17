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

/// Returns one line that says which layers of a store that multiplies in FP8 do not, and why. Call
/// after finalize(). Empty if these are only the ones that never do (head, embeddings, norms,
/// routers, low-rank updates).
std::string fp8_note(const ParameterStore& store);

}  // namespace sortie::trainer
