// The CPU backend: oneDNN engine and stream, the cache of products, the table of row kernels, and
// helpers that split work over threads. Included by files of this folder only.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "trainer/ops/backend.h"
#include "trainer/ops/cpu/matmul.h"
#include "trainer/ops/kernels/table.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer {

namespace ops {

struct CpuState {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  const Kernels* kernels = nullptr;
  using Matmuls = std::unordered_map<MatmulSpec, std::shared_ptr<const Matmul>, MatmulSpecHash>;
  Matmuls matmuls;
};

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(int threads);

  // Memory.
  void fill(Context& context, double value, Tensor& x) override;
  void copy(Context& context, const Tensor& from, Tensor& to) override;
  void copy_to_place(Context& context, const Tensor& from, const Tensor& place,
                     Tensor& to) override;
  void copy_from_host(Context& context, std::span<const std::byte> from, Tensor& to) override;
  void copy_to_host(Context& context, const Tensor& from, std::span<std::byte> to) override;
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
                     const Tensor& loss_sum, const Tensor& squared_norm, Tensor& seen, Tensor& gate,
                     Tensor& outcome) override;
  void sum_of_squares(Context& context, const Tensor& values, Tensor& sum) override;
  void adamw(Context& context, const AdamWStep& step, Tensor& w, const Tensor& grad, Tensor& m,
             Tensor& v, Tensor& compute) override;
  void demo_send(Context& context, const DemoSend& step, const DemoBlocks& blocks,
                 const Tensor& grad, Tensor& momentum, Tensor& message) override;
  void demo_move(Context& context, const DemoMove& step, const DemoBlocks& blocks,
                 const Tensor& messages, Tensor& w, Tensor& compute) override;

  CpuState state;
};

inline CpuState& cpu_state(ExecutionContext& context) {
  return static_cast<CpuBackend&>(context.backend()).state;
}

inline const Kernels& kernels(ExecutionContext& context) {
  return *cpu_state(context).kernels;
}
inline const TypedKernels& typed_kernels(ExecutionContext& context, DType dtype) {
  return dtype == DType::bf16 ? kernels(context).bf16 : kernels(context).f32;
}

/// True on the meta device, which runs this code for its allocations. Nothing may access memory
/// there.
inline bool is_meta(const ExecutionContext& context) {
  return context.device().kind == DeviceKind::meta;
}

/// Calls body(begin, end) for consecutive ranges that cover [0, count), each `grain` long except
/// the last. The ranges do not depend on the thread count.
template <class Body>
void parallel_ranges(ExecutionContext& context, std::int64_t count, std::int64_t grain,
                     const Body& body) {
  if (is_meta(context)) return;
  const std::int64_t pieces = (count + grain - 1) / grain;
  const int threads = static_cast<int>(std::min<std::int64_t>(context.threads(), pieces));
  if (threads <= 1) {
    for (std::int64_t piece = 0; piece < pieces; ++piece)
      body(piece * grain, std::min(count, (piece + 1) * grain));
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const std::int64_t team = omp_get_num_threads();
    const std::int64_t self = omp_get_thread_num();
    for (std::int64_t piece = pieces * self / team; piece < pieces * (self + 1) / team; ++piece)
      body(piece * grain, std::min(count, (piece + 1) * grain));
  }
}

/// Calls body(task, thread) for every task in [0, tasks). Threads take tasks dynamically, one by
/// one.
template <class Body>
void parallel_tasks(ExecutionContext& context, std::int64_t tasks, const Body& body) {
  if (is_meta(context)) return;
  const int threads = static_cast<int>(std::min<std::int64_t>(context.threads(), tasks));
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
  for (std::int64_t task = 0; task < tasks; ++task) body(task, omp_get_thread_num());
}

}  // namespace ops
}  // namespace sortie::trainer
