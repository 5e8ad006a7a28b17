// Attention under context parallelism: the ranks of a group share the tokens of each sequence
// (trainer/parallel/context_group.h). Also the rank's own part of values of whole sequences.
//
// Keys and values are passed from rank to rank (Liu et al. 2023) while the previous ones are
// computed with; each rank accumulates the results of its queries over them. A rank never holds
// more of a sequence than its own chunks, the ones it computes with, and the next ones.
#pragma once

#include "trainer/autograd/functions.h"
#include "trainer/parallel/context_group.h"

namespace sortie::trainer {

/// Returns this rank's tokens of `whole` [B, T], the values of whole sequences: [B, T / N], the
/// earlier chunk first. Returns `whole` if `group` is null.
Tensor own_tokens(ExecutionContext& context, const Tensor& whole, const ContextGroup* group);

/// Computes ops::attention_forward() of this rank's queries over the keys of all ranks.
/// mask.document_start holds the rank's own tokens only. Collective: every rank of the group makes
/// the same call. `out` must be dense. A null `group` means that this rank has the whole sequences.
void attend(ExecutionContext& context, const ContextGroup* group, const Tensor& q, const Tensor& k,
            const Tensor& v, const ops::AttentionMask& mask, Tensor& out, Tensor& lse);
/// Computes the corresponding ops::attention_backward().
void attend_backward(ExecutionContext& context, const ContextGroup* group, const Tensor& q,
                     const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                     const Tensor& dout, const ops::AttentionMask& mask, Tensor& dq, Tensor& dk,
                     Tensor& dv);

}  // namespace sortie::trainer
