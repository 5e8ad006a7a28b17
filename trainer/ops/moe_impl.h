// What moe_router.cc and moe_experts.cc call after their checks.
#pragma once

#include "trainer/ops/moe_experts.h"
#include "trainer/ops/moe_router.h"

namespace sortie::trainer::ops {

void route_forward_cpu(ExecutionContext& context, const RouterSpec& spec, const Tensor& logits,
                       const Tensor& bias, const Tensor& replay, Tensor& scores, Tensor& experts,
                       Tensor& weights);
void route_backward_cpu(ExecutionContext& context, const RouterSpec& spec, const Tensor& scores,
                        const Tensor& experts, const Tensor& dweights, const Tensor& dscores,
                        Tensor& dlogits);
void count_top_experts_cpu(ExecutionContext& context, const Tensor& scores, std::int64_t top_k,
                           Tensor& counts);
double sequence_balance_cpu(ExecutionContext& context, const Tensor& scores, const Tensor& counts,
                            std::int64_t top_k);
void sequence_balance_backward_cpu(ExecutionContext& context, const Tensor& scores,
                                   const Tensor& counts, std::int64_t top_k, float scale,
                                   Tensor& dscores);

void dispatch_forward_cpu(ExecutionContext& context, const ExpertRows& rows, const Tensor& x,
                          Tensor& sorted);
void dispatch_backward_cpu(ExecutionContext& context, const ExpertRows& rows, const Tensor& dsorted,
                           Tensor& dx);
void combine_forward_cpu(ExecutionContext& context, const ExpertRows& rows, const Tensor& sorted,
                         const Tensor& weights, Tensor& y);
void combine_backward_cpu(ExecutionContext& context, const ExpertRows& rows, const Tensor& dy,
                          const Tensor& sorted, const Tensor& weights, Tensor& dsorted,
                          Tensor& dweights);
void grouped_linear_forward_cpu(ExecutionContext& context, const ExpertRows& rows, const Tensor& x,
                                std::span<const PackedWeight* const> weights, Tensor& y);
void grouped_linear_backward_data_cpu(ExecutionContext& context, const ExpertRows& rows,
                                      const Tensor& dy,
                                      std::span<const PackedWeight* const> weights, Tensor& dx);
void grouped_linear_backward_weight_cpu(ExecutionContext& context, const ExpertRows& rows,
                                        const Tensor& dy, const Tensor& x, std::span<Tensor> dw);

}  // namespace sortie::trainer::ops
