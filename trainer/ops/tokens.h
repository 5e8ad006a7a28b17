// Integers computed from tokens: positions, starts of documents, shifted tokens.
#pragma once

#include "trainer/ops/targets.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// positions i32 [B, T]: first, first + 1, ... in every sequence.
void count_positions(ExecutionContext& context, std::int64_t first, Tensor& positions);

/// starts i32 [B, T] = the position in its sequence where each token's document starts: 0, after
/// every token `end` (-1 = none) and, with `targets` (may be undefined), after every kDocumentEnds.
/// positions i32 [B, T] (undefined: not wanted) = the token's position in its document.
void find_documents(ExecutionContext& context, const Tensor& tokens, std::int32_t end,
                    const Tensor& targets, Tensor& starts, Tensor& positions);

/// shifted i32 [B, T]: position i gets the token at position i + distance, or `missing` if that is
/// past the sequence or, with `starts` (may be undefined), in another document.
void shift_tokens(ExecutionContext& context, const Tensor& tokens, const Tensor& starts,
                  std::int64_t distance, std::int32_t missing, Tensor& shifted);

}  // namespace sortie::trainer::ops
