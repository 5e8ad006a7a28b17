// Whole numbers that go with tokens: places, documents, tokens further on.
#pragma once

#include "trainer/ops/targets.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// positions i32 [B, T]: first, first + 1, ... in every sequence.
void count_positions(ExecutionContext& context, std::int64_t first, Tensor& positions);

/// starts i32 [B, T] = the place where each token's document starts in its sequence: at 0, behind
/// every token `end` (-1 = none) and, with `targets` (may be undefined), behind every
/// kDocumentEnds. positions i32 [B, T] (undefined: not wanted) = places in the document.
void find_documents(ExecutionContext& context, const Tensor& tokens, std::int32_t end,
                    const Tensor& targets, Tensor& starts, Tensor& positions);

/// shifted i32 [B, T]: place i gets the value of place i + distance, and `missing` where that is
/// past the sequence or, with `starts` (may be undefined), in another document.
void shift_tokens(ExecutionContext& context, const Tensor& tokens, const Tensor& starts,
                  std::int64_t distance, std::int32_t missing, Tensor& shifted);

}  // namespace sortie::trainer::ops
