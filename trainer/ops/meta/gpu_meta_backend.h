// The backend of the meta device that stands for a GPU (planned_gpu.h). Its ops only make the
// allocations of ops/cuda, with the same sizes (ops/cuda/work_sizes.h).
#pragma once

#include <array>

#include "trainer/ops/meta/meta_backend.h"

namespace sortie::trainer::ops {

class GpuMetaBackend final : public MetaBackend {
 public:
  using MetaBackend::MetaBackend;

  // Products, which need no rearranged weights.
  void weight_changed(Context&, const PackedWeight& w) override {
    if (w.copies() != nullptr) static_cast<Fp8Copies&>(*w.copies()).mark_stale();
  }
  void linear_forward(Context& context, const Tensor& x, const PackedWeight& w, const Tensor& bias,
                      Tensor& y) override;
  void linear_backward_data(Context& context, const Tensor&, const PackedWeight&,
                            Tensor&) override {
    multiply(context);
  }
  void linear_backward_weight(Context& context, const Tensor& dy, const Tensor& x, Tensor& dw,
                              Tensor& dbias, WriteMode mode_of_dw) override;
  void cast_fp8(Context& context, const Tensor& x, const Fp8Amax& amax, Fp8Matrix& matrix) override;
  void roll_fp8_history(Context&, Tensor&, Tensor&) override {}
  void multiply_fp8(Context& context, const Fp8Operand& a, const Fp8Operand& b, const Tensor& bias,
                    Tensor& y) override;
  void weight_gradient_fp8(Context& context, const Fp8Operand&, const Fp8Operand&, Tensor&,
                           WriteMode) override {
    multiply(context);
  }
  void linear_cross_entropy(Context& context, const Tensor& h, const PackedWeight& w,
                            const Tensor& targets, const CrossEntropySpec& spec, Tensor& dh,
                            Tensor& dw, Tensor& loss) override;
  void begin_cross_entropy(Context& context, const Tensor& h, const PackedWeight& w,
                           const Tensor& targets, const CrossEntropySpec& spec, bool with_gradients,
                           CrossEntropyPart& part) override;
  void finish_cross_entropy(Context& context, const Tensor& h, const PackedWeight& w,
                            const Tensor& targets, const CrossEntropySpec& spec,
                            const CrossEntropyPart& part, const Tensor& all_stats, Tensor& dh,
                            Tensor& dw, Tensor& loss) override;
  void grouped_linear_forward(Context&, const ExpertRows&, const Tensor&,
                              std::span<const PackedWeight* const>, Tensor&) override {}
  void grouped_linear_backward_data(Context&, const ExpertRows&, const Tensor&,
                                    std::span<const PackedWeight* const>, Tensor&) override {}

  // Attention and norms.
  void attention_forward(Context&, const Tensor&, const Tensor&, const Tensor&,
                         const AttentionMask&, Tensor&, Tensor&) override {}
  void attention_backward(Context& context, const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& out, const Tensor& lse, const Tensor& dout,
                          const AttentionMask& mask, Tensor& dq, Tensor& dk, Tensor& dv) override;
  void residual_norm_backward(Context& context, NormKind kind, const Tensor& dy,
                              const Tensor& dresidual, const Tensor& x, const Tensor& weight,
                              const Tensor& stats, Tensor& dx, Tensor& dweight,
                              Tensor& dbias) override;
  void embedding_backward(Context& context, const Tensor& tokens, const Tensor& dy,
                          const TablePart& part, Tensor& dtable) override;

  // Mixtures of experts, and updates.
  void count_choices(Context& context, const Tensor& experts, Tensor& counts) override;
  void count_choices_of_parts(Context& context, const Tensor& experts, Tensor& counts) override;
  void limit_choices(Context& context, const Tensor& experts, std::int64_t expert_count,
                     const ChoiceLimit& limit, Tensor& kept, Tensor& dropped) override;
  void count_top_experts(Context& context, const Tensor& scores, std::int64_t top_k,
                         Tensor& counts) override;
  void sequence_balance(Context& context, const Tensor& scores, const Tensor& counts,
                        std::int64_t top_k, double coefficient, Tensor& loss) override;
  void column_sums(Context& context, const Tensor& matrix, Tensor& sums) override;
  void sort_by_expert(Context& context, const Tensor& experts, ExpertRows& rows) override;
  void sum_of_squares(Context& context, const Tensor& values, Tensor& sum) override;

 private:
  /// Allocates the workspace of the current stream's products at the first one.
  void multiply(Context& context);
  /// The same, and allocates what a product with this bias needs.
  void multiply(Context& context, const Tensor& bias, const Tensor& y);
  std::array<Tensor, kStreams> workspaces_;
};

}  // namespace sortie::trainer::ops
