// Attention where the ranks of a group share the tokens of each sequence (trainer/parallel/
// context_group.h), and what a rank has of a whole sequence.
//
// Keys and values go from rank to rank (Liu et al. 2023) while the ones before them are worked on;
// each rank adds its queries' results over them up. No rank has more than its own chunks of a
// sequence, those that it works on, and the next.
#pragma once

#include "trainer/autograd/functions.h"
#include "trainer/parallel/context_group.h"

namespace sortie::trainer {

/// Of values [B, T] of whole sequences, those of a rank's tokens: [B, T / N], its earlier chunk
/// first. A null group: all of them, as below.
Tensor own_tokens(ExecutionContext& context, const Tensor& whole, const ContextGroup* group);

/// ops::attention_forward() of a rank's queries over the keys of all ranks; mask.document_start is
/// of its own tokens. All ranks of the group call it alike; out is dense.
void attend(ExecutionContext& context, const ContextGroup* group, const Tensor& q, const Tensor& k,
            const Tensor& v, const ops::AttentionMask& mask, Tensor& out, Tensor& lse);
/// ops::attention_backward() of the same.
void attend_backward(ExecutionContext& context, const ContextGroup* group, const Tensor& q,
                     const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                     const Tensor& dout, const ops::AttentionMask& mask, Tensor& dq, Tensor& dk,
                     Tensor& dv);

}  // namespace sortie::trainer
