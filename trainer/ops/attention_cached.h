// Attention of the newest tokens over keys and values that are kept from earlier ones.
#pragma once

#include "trainer/ops/attention.h"

namespace sortie::trainer::ops {

/// out [B, N, H, Dv] of queries q [B, N, H, D] that are the last N of the L tokens whose keys
/// k [B, L, KV, D] and values v [B, L, KV, Dv] are given: what attention_forward gives for those
/// rows, up to rounding. No documents, no dropout.
///
/// With mask.place the device says which of the L tokens they are: those from `place` on. What lies
/// behind them in k and v is not seen, but is finite. The work that a GPU is given is then the same
/// for all places of one L; with more keys it may be cut in more parts.
void attention_cached(ExecutionContext& context, const Tensor& q, const Tensor& k, const Tensor& v,
                      const AttentionMask& mask, Tensor& out);

}  // namespace sortie::trainer::ops
