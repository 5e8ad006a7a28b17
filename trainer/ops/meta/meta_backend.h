// The backend of the meta device, which computes nothing. Ops that need scratch memory or keep
// copies run the CPU's code up to the point where it would access memory. They allocate what the
// CPU allocates, with the sizes that oneDNN reports, so that peaks are those of a real step.
#pragma once

#include "trainer/ops/cpu/cpu_backend.h"

namespace sortie::trainer::ops {

class MetaBackend : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;

  // Memory.
  void fill(Context&, double, Tensor&) override {}
  void copy(Context&, const Tensor&, Tensor&) override {}
  void copy_to_place(Context&, const Tensor&, const Tensor&, Tensor&) override {}
  void copy_from_host(Context&, std::span<const std::byte>, Tensor&) override {}
  void copy_to_host(Context& context, const Tensor& from, std::span<std::byte> to) override;
  void random_normal(Context&, std::uint64_t, std::int64_t, double, Tensor&) override {}
  void accumulate(Context&, const Tensor&, Tensor&) override {}

  // Linear layers; products and cross-entropy are inherited.
  void merge_low_rank(Context&, Tensor&, const Tensor&, float, Tensor&) override {}

  // Attention; that of training is inherited.
  void rope(Context&, Tensor&, const RopeTable&, const Tensor&, bool) override {}
  void attention_cached(Context&, const Tensor&, const Tensor&, const Tensor&, const AttentionMask&,
                        Tensor&) override {}
  void latent_keys_forward(Context&, const Tensor&, const Tensor&, Tensor&) override {}
  void latent_keys_backward(Context&, const Tensor&, Tensor&, Tensor&) override {}

  // Rows and elements.
  void residual_norm_forward(Context&, NormKind, const Tensor&, const Tensor&, const Tensor&,
                             const Tensor&, float, Tensor&, Tensor&, Tensor&) override {}
  void swiglu_forward(Context&, const Tensor&, const Tensor&, Tensor&) override {}
  void swiglu_backward(Context&, const Tensor&, const Tensor&, const Tensor&, Tensor&) override {}
  void gelu_forward(Context&, Gelu, const Tensor&, Tensor&) override {}
  void gelu_backward(Context&, Gelu, const Tensor&, const Tensor&, Tensor&) override {}
  void dropout(Context&, const Dropout&, std::int64_t, const Tensor&, Tensor&) override {}
  void add(Context&, const Tensor&, const Tensor&, Tensor&) override {}
  void scale(Context&, const Tensor&, float, Tensor&) override {}
  void convert(Context&, const Tensor&, Tensor&) override {}
  void concat_columns(Context&, const Tensor&, const Tensor&, Tensor&) override {}

  // Tokens.
  void embedding_forward(Context&, const Tensor&, const Tensor&, const TablePart&,
                         Tensor&) override {}
  void embedding_backward(Context&, const Tensor&, const Tensor&, const TablePart&,
                          Tensor&) override {}
  void count_positions(Context&, std::int64_t, Tensor&) override {}
  void find_documents(Context&, const Tensor&, std::int32_t, const Tensor&, Tensor&,
                      Tensor&) override {}
  void shift_tokens(Context&, const Tensor&, const Tensor&, std::int64_t, std::int32_t,
                    Tensor&) override {}

  // Mixtures of experts.
  void route_forward(Context&, const RouterSpec&, const Tensor&, const Tensor&, const Tensor&,
                     Tensor&, Tensor&, Tensor&) override {}
  void route_backward(Context&, const RouterSpec&, const Tensor&, const Tensor&, const Tensor&,
                      const Tensor&, Tensor&) override {}
  void count_choices(Context&, const Tensor&, Tensor&) override {}
  void count_choices_of_parts(Context&, const Tensor&, Tensor&) override {}
  void limit_choices(Context&, const Tensor&, std::int64_t, const ChoiceLimit&, Tensor&,
                     Tensor&) override {}
  void count_top_experts(Context&, const Tensor&, std::int64_t, Tensor&) override {}
  void sequence_balance(Context&, const Tensor&, const Tensor&, std::int64_t, double,
                        Tensor&) override {}
  void sequence_balance_backward(Context&, const Tensor&, const Tensor&, std::int64_t, float,
                                 Tensor&) override {}
  void column_sums(Context&, const Tensor&, Tensor&) override {}
  void load_balance(Context&, const Tensor&, const Tensor&, double, double, Tensor&) override {}
  void load_balance_backward(Context&, const Tensor&, double, float, Tensor&) override {}
  void update_router_bias(Context&, const Tensor&, const Tensor&, float, Tensor&) override {}
  void sort_by_expert(Context&, const Tensor&, ExpertRows&) override {}
  void dispatch_forward(Context&, const ExpertRows&, const Tensor&, Tensor&) override {}
  void dispatch_backward(Context&, const ExpertRows&, const Tensor&, Tensor&) override {}
  void combine_forward(Context&, const ExpertRows&, const Tensor&, const Tensor&,
                       Tensor&) override {}
  void combine_backward(Context&, const ExpertRows&, const Tensor&, const Tensor&, const Tensor&,
                        Tensor&, Tensor&) override {}
  void grouped_linear_forward(Context& context, const ExpertRows& rows, const Tensor& x,
                              std::span<const PackedWeight* const> weights, Tensor& y) override;
  void grouped_linear_backward_data(Context& context, const ExpertRows& rows, const Tensor& dy,
                                    std::span<const PackedWeight* const> weights,
                                    Tensor& dx) override;
  void grouped_linear_backward_weight(Context&, const ExpertRows&, const Tensor&, const Tensor&,
                                      std::span<Tensor>) override {}

  // Updates.
  void decide_update(Context&, const UpdateRule&, const GateStep&, const Tensor&, const Tensor&,
                     Tensor&, Tensor&, Tensor&) override {}
  void sum_of_squares(Context&, const Tensor&, Tensor&) override {}
  void adamw(Context&, const AdamWStep&, Tensor&, const Tensor&, Tensor&, Tensor&,
             Tensor&) override {}
  void demo_send(Context&, const DemoSend&, const DemoBlocks&, const Tensor&, Tensor&,
                 Tensor&) override {}
  void demo_move(Context&, const DemoMove&, const DemoBlocks&, const Tensor&, Tensor&,
                 Tensor&) override {}
};

}  // namespace sortie::trainer::ops
