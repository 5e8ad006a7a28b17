// The backend of NVIDIA GPUs. Its methods add kernels and library calls to the context's current
// stream and return at once. Each family of ops has its own files: host code in <family>.cc,
// kernels in <family>.cu, and the interface between them in <family>.h.
#pragma once

#include <cuda_runtime.h>

#include <deque>

#include "trainer/ops/backend.h"
#include "trainer/ops/cuda/products.h"

namespace sortie::trainer::ops::cuda {

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(Device device);

  // Memory.
  void fill(Context& context, double value, Tensor& x) override;
  void copy(Context& context, const Tensor& from, Tensor& to) override;
  void copy_to_place(Context& context, const Tensor& from, const Tensor& place,
                     Tensor& to) override;
  void copy_from_host(Context& context, std::span<const std::byte> from, Tensor& to) override;
  void copy_to_host(Context& context, const Tensor& from, std::span<std::byte> to) override;
  void copy_to_host_late(Context& context, const Tensor& from,
                         const std::shared_ptr<std::byte[]>& to) override;
  void random_normal(Context& context, std::uint64_t key, std::int64_t first, double std_dev,
                     Tensor& x) override;
  void accumulate(Context& context, const Tensor& from, Tensor& sums) override;

  // Linear layers.
  void weight_changed(Context& context, const PackedWeight& w) override;
  void linear_forward(Context& context, const Tensor& x, const PackedWeight& w, const Tensor& bias,
                      Tensor& y) override;
  void linear_backward_data(Context& context, const Tensor& dy, const PackedWeight& w,
                            Tensor& dx) override;
  void linear_backward_weight(Context& context, const Tensor& dy, const Tensor& x, Tensor& dw,
                              Tensor& dbias, WriteMode mode_of_dw) override;
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
  void merge_low_rank(Context& context, Tensor& up, const Tensor& down, float scale,
                      Tensor& w) override;

  void cast_fp8(Context& context, const Tensor& x, const Fp8Amax& amax, Fp8Matrix& matrix) override;
  void roll_fp8_history(Context& context, Tensor& history, Tensor& current) override;
  void multiply_fp8(Context& context, const Fp8Operand& a, const Fp8Operand& b, const Tensor& bias,
                    Tensor& y) override;
  void weight_gradient_fp8(Context& context, const Fp8Operand& a, const Fp8Operand& b, Tensor& dw,
                           WriteMode mode) override;

  void set_product_options(const ProductOptions& options) override;
  std::string product_choices() const override;
  Result<> use_product_choices(Context& context, std::string_view text) override;
  void forget_product_choices() override;

  // Attention.
  void rope(Context& context, Tensor& x, const RopeTable& table, const Tensor& positions,
            bool inverse) override;
  void attention_forward(Context& context, const Tensor& q, const Tensor& k, const Tensor& v,
                         const AttentionMask& mask, Tensor& out, Tensor& lse) override;
  void attention_backward(Context& context, const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& out, const Tensor& lse, const Tensor& dout,
                          const AttentionMask& mask, Tensor& dq, Tensor& dk, Tensor& dv) override;
  void attention_cached(Context& context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionMask& mask, Tensor& out) override;
  void latent_keys_forward(Context& context, const Tensor& kv, const Tensor& rope,
                           Tensor& k) override;
  void latent_keys_backward(Context& context, const Tensor& dk, Tensor& dkv,
                            Tensor& drope) override;

  // Rows and elements.
  void residual_norm_forward(Context& context, NormKind kind, const Tensor& residual,
                             const Tensor& branch, const Tensor& weight, const Tensor& bias,
                             float eps, Tensor& residual_out, Tensor& y, Tensor& stats) override;
  void residual_norm_backward(Context& context, NormKind kind, const Tensor& dy,
                              const Tensor& dresidual, const Tensor& x, const Tensor& weight,
                              const Tensor& stats, Tensor& dx, Tensor& dweight,
                              Tensor& dbias) override;
  void swiglu_forward(Context& context, const Tensor& gate_up, const Tensor& rows,
                      Tensor& y) override;
  void swiglu_backward(Context& context, const Tensor& dy, const Tensor& gate_up,
                       const Tensor& rows, Tensor& dgate_up) override;
  void gelu_forward(Context& context, Gelu kind, const Tensor& x, Tensor& y) override;
  void gelu_backward(Context& context, Gelu kind, const Tensor& dy, const Tensor& x,
                     Tensor& dx) override;
  void dropout(Context& context, const Dropout& dropout, std::int64_t samples, const Tensor& x,
               Tensor& y) override;
  void add(Context& context, const Tensor& a, const Tensor& b, Tensor& y) override;
  void scale(Context& context, const Tensor& x, float factor, Tensor& y) override;
  void convert(Context& context, const Tensor& from, Tensor& to) override;
  void concat_columns(Context& context, const Tensor& a, const Tensor& b, Tensor& y) override;

  // Tokens.
  void embedding_forward(Context& context, const Tensor& tokens, const Tensor& table,
                         const TablePart& part, Tensor& y) override;
  void embedding_backward(Context& context, const Tensor& tokens, const Tensor& dy,
                          const TablePart& part, Tensor& dtable) override;
  void count_positions(Context& context, std::int64_t first, Tensor& positions) override;
  void find_documents(Context& context, const Tensor& tokens, std::int32_t end,
                      const Tensor& targets, Tensor& starts, Tensor& positions) override;
  void shift_tokens(Context& context, const Tensor& tokens, const Tensor& starts,
                    std::int64_t distance, std::int32_t missing, Tensor& shifted) override;

  // Mixtures of experts.
  void route_forward(Context& context, const RouterSpec& spec, const Tensor& logits,
                     const Tensor& bias, const Tensor& replay, Tensor& scores, Tensor& experts,
                     Tensor& weights) override;
  void route_backward(Context& context, const RouterSpec& spec, const Tensor& scores,
                      const Tensor& experts, const Tensor& dweights, const Tensor& dscores,
                      Tensor& dlogits) override;
  void count_choices(Context& context, const Tensor& experts, Tensor& counts) override;
  void count_choices_of_parts(Context& context, const Tensor& experts, Tensor& counts) override;
  void limit_choices(Context& context, const Tensor& experts, std::int64_t expert_count,
                     const ChoiceLimit& limit, Tensor& kept, Tensor& dropped) override;
  void count_top_experts(Context& context, const Tensor& scores, std::int64_t top_k,
                         Tensor& counts) override;
  void sequence_balance(Context& context, const Tensor& scores, const Tensor& counts,
                        std::int64_t top_k, double coefficient, Tensor& loss) override;
  void sequence_balance_backward(Context& context, const Tensor& scores, const Tensor& counts,
                                 std::int64_t top_k, float scale, Tensor& dscores) override;
  void column_sums(Context& context, const Tensor& matrix, Tensor& sums) override;
  void load_balance(Context& context, const Tensor& assigned, const Tensor& score_sums, double rows,
                    double coefficient, Tensor& loss) override;
  void load_balance_backward(Context& context, const Tensor& assigned, double rows, float scale,
                             Tensor& dscores) override;
  void update_router_bias(Context& context, const Tensor& gate, const Tensor& counts, float rate,
                          Tensor& bias) override;
  void sort_by_expert(Context& context, const Tensor& experts, ExpertRows& rows) override;
  void dispatch_forward(Context& context, const ExpertRows& rows, const Tensor& x,
                        Tensor& sorted) override;
  void dispatch_backward(Context& context, const ExpertRows& rows, const Tensor& dsorted,
                         Tensor& dx) override;
  void combine_forward(Context& context, const ExpertRows& rows, const Tensor& sorted,
                       const Tensor& weights, Tensor& y) override;
  void combine_backward(Context& context, const ExpertRows& rows, const Tensor& dy,
                        const Tensor& sorted, const Tensor& weights, Tensor& dsorted,
                        Tensor& dweights) override;
  void grouped_linear_forward(Context& context, const ExpertRows& rows, const Tensor& x,
                              std::span<const PackedWeight* const> weights, Tensor& y) override;
  void grouped_linear_backward_data(Context& context, const ExpertRows& rows, const Tensor& dy,
                                    std::span<const PackedWeight* const> weights,
                                    Tensor& dx) override;
  void grouped_linear_backward_weight(Context& context, const ExpertRows& rows, const Tensor& dy,
                                      const Tensor& x, std::span<Tensor> dw) override;

  // Updates.
  void decide_update(Context& context, const UpdateRule& rule, const GateStep& step,
                     const Tensor& loss_sum, const Tensor& squared_norm, Tensor& state,
                     Tensor& gate, Tensor& outcome) override;
  void sum_of_squares(Context& context, const Tensor& values, Tensor& sum) override;
  void adamw(Context& context, const AdamWStep& step, Tensor& w, const Tensor& grad, Tensor& m,
             Tensor& v, Tensor& compute) override;
  void demo_send(Context& context, const DemoSend& step, const DemoBlocks& blocks,
                 const Tensor& grad, Tensor& momentum, Tensor& message) override;
  void demo_move(Context& context, const DemoMove& step, const DemoBlocks& blocks,
                 const Tensor& messages, Tensor& w, Tensor& compute) override;

 private:
  CudaBackend(Device device, const cudaDeviceProp& properties);
  /// Host memory that is being copied to the GPU.
  struct Upload {
    Event done;
    std::shared_ptr<std::byte[]> block;
  };
  /// A product with a bias, which the product adds if the library supports that, else a kernel
  /// after it.
  void multiply_with_bias(Context& context, Product product, Operands operands, const Tensor& bias,
                          Tensor& y);
  const Device device_;
  const bool warpgroups_;                // warpgroup products are compiled for this GPU
  const std::size_t half_shared_bytes_;  // of a multiprocessor
  std::deque<Upload> uploads_;
  Products products_;
  ProductOptions product_options_;
};

}  // namespace sortie::trainer::ops::cuda
