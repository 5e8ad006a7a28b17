// Selects how the ranks of a run on GPUs compute products: the same way on all ranks, and after a
// resume the same way as before.
#pragma once

#include <functional>
#include <string>

#include "common/base/result.h"
#include "trainer/parallel/communicator.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer {

/// Call before the first step, on GPUs; collective. All ranks adopt the choices in rank 0's
/// `saved`. If rank 0's `timed` is above 1, every rank then times that many ways to compute each
/// other product in `rehearsal`, a micro-batch forward and backward whose results are dropped. For
/// each shape, all ranks adopt the choice of the lowest rank that has it. Shapes that occur later
/// are not timed: the library's own choice is the same on all ranks. Returns a note for the user if
/// `saved` could not be used in full, else an empty string. ErrorCode::unsupported if a rank can
/// not adopt the choices.
Result<std::string> choose_products(ExecutionContext& context, Communicator& world,
                                    const std::string& saved, int timed,
                                    const std::function<void()>& rehearsal);

}  // namespace sortie::trainer
