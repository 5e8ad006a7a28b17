// RMSNorm and LayerNorm over the last dimension, each fused with the residual addition before it.
// Statistics and sums in f32. Weights and biases are f32 [C] whatever the activation dtype.
#pragma once

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

enum class NormKind { rms, layer };

/// residual_out = residual + branch. If branch is undefined, residual_out must be `residual` itself
/// and is not written. y = norm(residual_out) * weight (+ bias, layer only), with
///   rms:   y = x * rsqrt(mean(x^2) + eps)                      (Zhang & Sennrich 2019)
///   layer: y = (x - mean(x)) * rsqrt(var(x) + eps)             (Ba et al. 2016)
/// stats [M, 2] f32 receives (mean, reciprocal deviation) for the backward pass; mean is 0 for rms.
void residual_norm_forward(ExecutionContext& context, NormKind kind, const Tensor& residual,
                           const Tensor& branch, const Tensor& weight, const Tensor& bias,
                           float eps, Tensor& residual_out, Tensor& y, Tensor& stats);

/// x is residual_out of the forward pass. dx = gradient through the norm + dresidual (undefined =
/// 0) is the gradient of both residual and branch. dweight and dbias (f32, undefined if not wanted;
/// rms has no dbias) are added to. dx may be the same memory as dresidual.
void residual_norm_backward(ExecutionContext& context, NormKind kind, const Tensor& dy,
                            const Tensor& dresidual, const Tensor& x, const Tensor& weight,
                            const Tensor& stats, Tensor& dx, Tensor& dweight, Tensor& dbias);

}  // namespace sortie::trainer::ops
