// How all ranks of a run on GPUs compute their products: alike, and after a resume as before it.
#pragma once

#include <functional>
#include <string>

#include "common/base/result.h"
#include "trainer/parallel/communicator.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer {

/// Before the first step, on GPUs; collective. What `saved`, of rank 0, says of shapes is taken
/// over by all ranks. With rank 0's `timed` > 1 every rank then times as many ways to compute each
/// of the other products in `rehearsal`, a micro-batch forward and backward whose results are
/// dropped, and of each shape all ranks take the choice of the first rank that has it, rank 0
/// before all others. Shapes that come later are not timed: the library's own choice is the same on
/// all ranks. Returns what a person should know where `saved` could not be used in full, else
/// nothing. ErrorCode:: unsupported where a rank can not take the choices.
Result<std::string> choose_products(ExecutionContext& context, Communicator& world,
                                    const std::string& saved, int timed,
                                    const std::function<void()>& rehearsal);

}  // namespace sortie::trainer
