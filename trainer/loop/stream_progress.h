// How the progress marks of a rank that computes on a GPU come from the GPU.
#pragma once

#include "trainer/metrics/progress_marks.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer {

/// Lets the compute stream of a GPU write the marks, because the host is ahead of it; no-op on
/// other devices. Each mark is one small kernel, and no wait of the host. `context` must exist
/// until marks.unfollow().
void follow_stream(ProgressMarks& marks, ExecutionContext& context);

}  // namespace sortie::trainer
