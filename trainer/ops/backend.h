// Backend: the interface of the coarse ops, implemented for each kind of device. Each method has
// the contract of the function of the same name in this folder's headers. That function (the op's
// front) checks shapes and dtypes before the call; a backend checks only values. All results are
// written to tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/base/check.h"
#include "trainer/ops/attention.h"
#include "trainer/ops/demo.h"
#include "trainer/ops/dropout.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/fp8.h"
#include "trainer/ops/linear.h"
#include "trainer/ops/moe_experts.h"
#include "trainer/ops/moe_router.h"
#include "trainer/ops/norm.h"
#include "trainer/ops/optimizer.h"
#include "trainer/ops/products.h"
#include "trainer/ops/update_gate.h"

namespace sortie::trainer::ops {

class Backend {
 public:
  using Context = ExecutionContext;
  virtual ~Backend() = default;

  // Memory.
  virtual void fill(Context& context, double value, Tensor& x) = 0;
  virtual void copy(Context& context, const Tensor& from, Tensor& to) = 0;
  virtual void copy_to_place(Context& context, const Tensor& from, const Tensor& place,
                             Tensor& to) = 0;
  virtual void copy_from_host(Context& context, std::span<const std::byte> from, Tensor& to) = 0;
  virtual void copy_to_host(Context& context, const Tensor& from, std::span<std::byte> to) = 0;
  /// Copies when the current stream gets there. `to` must have room for all bytes and outlive the
  /// copy.
  virtual void copy_to_host_late(Context& context, const Tensor& from,
                                 const std::shared_ptr<std::byte[]>& to) {
    const std::size_t bytes = static_cast<std::size_t>(from.elements()) * dtype_bytes(from.dtype());
    copy_to_host(context, from, {to.get(), bytes});
  }
  virtual void random_normal(Context& context, std::uint64_t key, std::int64_t first,
                             double std_dev, Tensor& x) = 0;
  virtual void accumulate(Context& context, const Tensor& from, Tensor& sums) = 0;

  // Linear layers.
  virtual void weight_changed(Context& context, const PackedWeight& w) = 0;
  virtual void linear_forward(Context& context, const Tensor& x, const PackedWeight& w,
                              const Tensor& bias, Tensor& y) = 0;
  virtual void linear_backward_data(Context& context, const Tensor& dy, const PackedWeight& w,
                                    Tensor& dx) = 0;
  virtual void linear_backward_weight(Context& context, const Tensor& dy, const Tensor& x,
                                      Tensor& dw, Tensor& dbias, WriteMode mode_of_dw) = 0;
  virtual void linear_cross_entropy(Context& context, const Tensor& h, const PackedWeight& w,
                                    const Tensor& targets, const CrossEntropySpec& spec, Tensor& dh,
                                    Tensor& dw, Tensor& loss) = 0;
  virtual void begin_cross_entropy(Context& context, const Tensor& h, const PackedWeight& w,
                                   const Tensor& targets, const CrossEntropySpec& spec,
                                   bool with_gradients, CrossEntropyPart& part) = 0;
  virtual void finish_cross_entropy(Context& context, const Tensor& h, const PackedWeight& w,
                                    const Tensor& targets, const CrossEntropySpec& spec,
                                    const CrossEntropyPart& part, const Tensor& all_stats,
                                    Tensor& dh, Tensor& dw, Tensor& loss) = 0;
  virtual void merge_low_rank(Context& context, Tensor& up, const Tensor& down, float scale,
                              Tensor& w) = 0;

  // Products in FP8, which CPUs do not support. cast_fp8() writes the copies that are allocated.
  virtual void cast_fp8(Context&, const Tensor&, const Fp8Amax&, Fp8Matrix&) {
    SORTIE_CHECK(false, "a matrix in FP8 on a device that has no such products");
  }
  virtual void roll_fp8_history(Context&, Tensor&, Tensor&) {
    SORTIE_CHECK(false, "scales of FP8 on a device that has no such products");
  }
  virtual void multiply_fp8(Context&, const Fp8Operand&, const Fp8Operand&, const Tensor&,
                            Tensor&) {
    SORTIE_CHECK(false, "a product in FP8 on a device that has none");
  }
  virtual void weight_gradient_fp8(Context&, const Fp8Operand&, const Fp8Operand&, Tensor&,
                                   WriteMode) {
    SORTIE_CHECK(false, "a product in FP8 on a device that has none");
  }

  // How products are computed, where there is a choice (products.h).
  virtual void set_product_options(const ProductOptions&) {}
  virtual std::string product_choices() const { return {}; }
  virtual Result<> use_product_choices(Context&, std::string_view) { return {}; }
  virtual void forget_product_choices() {}

  // Attention.
  virtual void rope(Context& context, Tensor& x, const RopeTable& table, const Tensor& positions,
                    bool inverse) = 0;
  virtual void attention_forward(Context& context, const Tensor& q, const Tensor& k,
                                 const Tensor& v, const AttentionMask& mask, Tensor& out,
                                 Tensor& lse) = 0;
  virtual void attention_backward(Context& context, const Tensor& q, const Tensor& k,
                                  const Tensor& v, const Tensor& out, const Tensor& lse,
                                  const Tensor& dout, const AttentionMask& mask, Tensor& dq,
                                  Tensor& dk, Tensor& dv) = 0;
  virtual void attention_cached(Context& context, const Tensor& q, const Tensor& k, const Tensor& v,
                                const AttentionMask& mask, Tensor& out) = 0;
  virtual void latent_keys_forward(Context& context, const Tensor& kv, const Tensor& rope,
                                   Tensor& k) = 0;
  virtual void latent_keys_backward(Context& context, const Tensor& dk, Tensor& dkv,
                                    Tensor& drope) = 0;

  // Rows and elements.
  virtual void residual_norm_forward(Context& context, NormKind kind, const Tensor& residual,
                                     const Tensor& branch, const Tensor& weight, const Tensor& bias,
                                     float eps, Tensor& residual_out, Tensor& y, Tensor& stats) = 0;
  virtual void residual_norm_backward(Context& context, NormKind kind, const Tensor& dy,
                                      const Tensor& dresidual, const Tensor& x,
                                      const Tensor& weight, const Tensor& stats, Tensor& dx,
                                      Tensor& dweight, Tensor& dbias) = 0;
  virtual void swiglu_forward(Context& context, const Tensor& gate_up, const Tensor& rows,
                              Tensor& y) = 0;
  virtual void swiglu_backward(Context& context, const Tensor& dy, const Tensor& gate_up,
                               const Tensor& rows, Tensor& dgate_up) = 0;
  virtual void gelu_forward(Context& context, Gelu kind, const Tensor& x, Tensor& y) = 0;
  virtual void gelu_backward(Context& context, Gelu kind, const Tensor& dy, const Tensor& x,
                             Tensor& dx) = 0;
  virtual void dropout(Context& context, const Dropout& dropout, std::int64_t samples,
                       const Tensor& x, Tensor& y) = 0;
  virtual void add(Context& context, const Tensor& a, const Tensor& b, Tensor& y) = 0;
  virtual void scale(Context& context, const Tensor& x, float factor, Tensor& y) = 0;
  virtual void convert(Context& context, const Tensor& from, Tensor& to) = 0;
  virtual void concat_columns(Context& context, const Tensor& a, const Tensor& b, Tensor& y) = 0;

  // Tokens.
  virtual void embedding_forward(Context& context, const Tensor& tokens, const Tensor& table,
                                 const TablePart& part, Tensor& y) = 0;
  virtual void embedding_backward(Context& context, const Tensor& tokens, const Tensor& dy,
                                  const TablePart& part, Tensor& dtable) = 0;
  virtual void count_positions(Context& context, std::int64_t first, Tensor& positions) = 0;
  virtual void find_documents(Context& context, const Tensor& tokens, std::int32_t end,
                              const Tensor& targets, Tensor& starts, Tensor& positions) = 0;
  virtual void shift_tokens(Context& context, const Tensor& tokens, const Tensor& starts,
                            std::int64_t distance, std::int32_t missing, Tensor& shifted) = 0;

  // Mixtures of experts.
  virtual void route_forward(Context& context, const RouterSpec& spec, const Tensor& logits,
                             const Tensor& bias, const Tensor& replay, Tensor& scores,
                             Tensor& experts, Tensor& weights) = 0;
  virtual void route_backward(Context& context, const RouterSpec& spec, const Tensor& scores,
                              const Tensor& experts, const Tensor& dweights, const Tensor& dscores,
                              Tensor& dlogits) = 0;
  virtual void count_choices(Context& context, const Tensor& experts, Tensor& counts) = 0;
  virtual void count_choices_of_parts(Context& context, const Tensor& experts, Tensor& counts) = 0;
  virtual void limit_choices(Context& context, const Tensor& experts, std::int64_t expert_count,
                             const ChoiceLimit& limit, Tensor& kept, Tensor& dropped) = 0;
  virtual void count_top_experts(Context& context, const Tensor& scores, std::int64_t top_k,
                                 Tensor& counts) = 0;
  virtual void sequence_balance(Context& context, const Tensor& scores, const Tensor& counts,
                                std::int64_t top_k, double coefficient, Tensor& loss) = 0;
  virtual void sequence_balance_backward(Context& context, const Tensor& scores,
                                         const Tensor& counts, std::int64_t top_k, float scale,
                                         Tensor& dscores) = 0;
  virtual void column_sums(Context& context, const Tensor& matrix, Tensor& sums) = 0;
  virtual void load_balance(Context& context, const Tensor& assigned, const Tensor& score_sums,
                            double rows, double coefficient, Tensor& loss) = 0;
  virtual void load_balance_backward(Context& context, const Tensor& assigned, double rows,
                                     float scale, Tensor& dscores) = 0;
  virtual void update_router_bias(Context& context, const Tensor& gate, const Tensor& counts,
                                  float rate, Tensor& bias) = 0;
  virtual void sort_by_expert(Context& context, const Tensor& experts, ExpertRows& rows) = 0;
  virtual void dispatch_forward(Context& context, const ExpertRows& rows, const Tensor& x,
                                Tensor& sorted) = 0;
  virtual void dispatch_backward(Context& context, const ExpertRows& rows, const Tensor& dsorted,
                                 Tensor& dx) = 0;
  virtual void combine_forward(Context& context, const ExpertRows& rows, const Tensor& sorted,
                               const Tensor& weights, Tensor& y) = 0;
  virtual void combine_backward(Context& context, const ExpertRows& rows, const Tensor& dy,
                                const Tensor& sorted, const Tensor& weights, Tensor& dsorted,
                                Tensor& dweights) = 0;
  virtual void grouped_linear_forward(Context& context, const ExpertRows& rows, const Tensor& x,
                                      std::span<const PackedWeight* const> weights, Tensor& y) = 0;
  virtual void grouped_linear_backward_data(Context& context, const ExpertRows& rows,
                                            const Tensor& dy,
                                            std::span<const PackedWeight* const> weights,
                                            Tensor& dx) = 0;
  virtual void grouped_linear_backward_weight(Context& context, const ExpertRows& rows,
                                              const Tensor& dy, const Tensor& x,
                                              std::span<Tensor> dw) = 0;

  // Updates.
  virtual void decide_update(Context& context, const UpdateRule& rule, const GateStep& step,
                             const Tensor& loss_sum, const Tensor& squared_norm, Tensor& state,
                             Tensor& gate, Tensor& outcome) = 0;
  virtual void sum_of_squares(Context& context, const Tensor& values, Tensor& sum) = 0;
  virtual void adamw(Context& context, const AdamWStep& step, Tensor& w, const Tensor& grad,
                     Tensor& m, Tensor& v, Tensor& compute) = 0;
  virtual void demo_send(Context& context, const DemoSend& step, const DemoBlocks& blocks,
                         const Tensor& grad, Tensor& momentum, Tensor& message) = 0;
  virtual void demo_move(Context& context, const DemoMove& step, const DemoBlocks& blocks,
                         const Tensor& messages, Tensor& w, Tensor& compute) = 0;
};

/// Creates the backend for the device's kind, with `threads` compute threads.
std::unique_ptr<Backend> make_backend(Device device, int threads);

}  // namespace sortie::trainer::ops
