// What dropout.cc and attention_cpu.cc share.
#pragma once

#include "trainer/ops/dropout.h"
#include "trainer/ops/kernels/table.h"

namespace sortie::trainer::ops {

/// The generator's state for the elements of sample `b` of the batch from `begin` on.
DropoutRow dropout_row(const Dropout& dropout, std::int64_t b, std::int64_t begin);

void dropout_cpu(ExecutionContext& context, const Dropout& dropout, std::int64_t samples,
                 const Tensor& x, Tensor& y);

}  // namespace sortie::trainer::ops
