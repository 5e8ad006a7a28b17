// Attention of the newest tokens over keys and values that are kept from earlier ones.
#pragma once

#include "trainer/ops/attention.h"

namespace sortie::trainer::ops {

/// out [B, N, H, Dv] = attention of the queries q [B, N, H, D] over the keys k [B, L, KV, D] and
/// values v [B, L, KV, Dv] of L tokens. The queries are the last N of these tokens. The result
/// equals that of attention_forward for those rows, up to rounding. Documents and dropout are not
/// supported.
///
/// With mask.place, the queries are instead the N tokens from position `place` on, which is read on
/// the device. Keys and values after them are ignored but must be finite. A GPU's work is then the
/// same for every place, as graphs require. It may depend on L: more keys may be split into more
/// parts.
void attention_cached(ExecutionContext& context, const Tensor& q, const Tensor& k, const Tensor& v,
                      const AttentionMask& mask, Tensor& out);

}  // namespace sortie::trainer::ops
