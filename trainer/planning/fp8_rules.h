// model.precision = "fp8": what it needs of a job, and what of a model it leaves in bf16.
#pragma once

#include <string>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "trainer/nn/parameter_store.h"

namespace sortie::trainer {

/// ErrorCode::config where the rows that layers multiply in a micro-batch are no multiple of
/// ops::kFp8Unit: then nothing would be in FP8. Of any other precision there is no error.
Result<> check_fp8_rows(const config::JobConfig& job, std::int64_t micro_batch_size);

/// Of a store that multiplies in FP8, after finalize(): what of it does not, and why, as one line;
/// empty: nothing but what never does (head, embeddings, norms, routers, low-rank updates).
std::string fp8_note(const ParameterStore& store);

}  // namespace sortie::trainer
