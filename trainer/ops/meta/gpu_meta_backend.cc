#include "trainer/ops/meta/gpu_meta_backend.h"

#include <algorithm>

#include "trainer/ops/cuda/work_sizes.h"
#include "trainer/ops/products.h"

namespace sortie::trainer::ops {
namespace {

std::int64_t columns_of(const CrossEntropySpec& spec, const PackedWeight& w) {
  return std::clamp<std::int64_t>(spec.vocab_size - spec.first_token, 0, w.plain().size(0));
}

/// Allocates the f32 gradients of rows if their last columns are added separately.
Tensor kept_rows(ExecutionContext& context, const CrossEntropySpec& spec, const PackedWeight& w,
                 std::int64_t rows, const Tensor& dh) {
  if (!dh.defined() || cuda::head_rest(columns_of(spec, w)) == 0) return {};
  return context.empty(DType::f32, {rows, w.plain().size(1)});
}

}  // namespace

void GpuMetaBackend::multiply(Context& context) {
  Tensor& workspace = workspaces_[static_cast<std::size_t>(context.stream())];
  if (!workspace.defined())
    workspace = context.empty(DType::u8, {static_cast<std::int64_t>(cuda::kProductWorkspaceBytes)});
}

void GpuMetaBackend::linear_forward(Context& context, const Tensor&, const PackedWeight&,
                                    const Tensor& bias, Tensor& y) {
  multiply(context, bias, y);
}

void GpuMetaBackend::cast_fp8(Context& context, const Tensor& x, const Fp8Amax& amax, Fp8Matrix&) {
  const Tensor::Matrix in = x.matrix();
  const Tensor parts = context.empty(DType::f32, {cuda::fp8_parts(in.rows)});
  if (amax.current.defined()) (void)context.empty(DType::f32, {cuda::fp8_tiles(in.rows, in.cols)});
}

void GpuMetaBackend::multiply_fp8(Context& context, const Fp8Operand&, const Fp8Operand&,
                                  const Tensor& bias, Tensor& y) {
  multiply(context, bias, y);
}

void GpuMetaBackend::multiply(Context& context, const Tensor& bias, const Tensor& y) {
  Tensor rounded;
  if (bias.defined() &&
      (y.dtype() != DType::f32 || reinterpret_cast<std::uintptr_t>(bias.raw()) % 16 != 0))
    rounded = context.empty(y.dtype(), {y.matrix().cols});
  multiply(context);
}

void GpuMetaBackend::linear_backward_weight(Context& context, const Tensor& dy, const Tensor&,
                                            Tensor& dw, Tensor& dbias, WriteMode) {
  if (dw.defined()) multiply(context);
  if (!dbias.defined()) return;
  const Tensor::Matrix gradient = dy.matrix();
  (void)context.empty(DType::f32, {cuda::column_sum_parts(gradient.rows), gradient.cols});
}

void GpuMetaBackend::linear_cross_entropy(Context& context, const Tensor&, const PackedWeight& w,
                                          const Tensor& targets, const CrossEntropySpec& spec,
                                          Tensor& dh, Tensor& dw, Tensor&) {
  const std::int64_t all = targets.elements();
  const std::int64_t line = cuda::head_line(columns_of(spec, w));
  const std::int64_t most = head_chunk_rows({}, all, line, dw.defined() ? dw.elements() : 0);
  const Tensor logits = context.empty(DType::f32, {most, line});
  const Tensor losses = context.empty(DType::f64, {all});
  multiply(context);
  (void)kept_rows(context, spec, w, most, dh);
}

void GpuMetaBackend::begin_cross_entropy(Context& context, const Tensor&, const PackedWeight& w,
                                         const Tensor& targets, const CrossEntropySpec& spec, bool,
                                         CrossEntropyPart&) {
  const std::int64_t all = targets.elements();
  const std::int64_t line = std::max(cuda::head_line(columns_of(spec, w)), cuda::kHeadPack);
  const Tensor logits = context.empty(DType::f32, {head_chunk_rows({}, all, line, 0), line});
  multiply(context);
}

void GpuMetaBackend::finish_cross_entropy(Context& context, const Tensor&, const PackedWeight& w,
                                          const Tensor& targets, const CrossEntropySpec& spec,
                                          const CrossEntropyPart&, const Tensor&, Tensor& dh,
                                          Tensor&, Tensor&) {
  const std::int64_t all = targets.elements();
  const Tensor losses = context.empty(DType::f64, {all});
  const Tensor factors = context.empty(DType::f32, {all});
  (void)kept_rows(context, spec, w, all, dh);
}

void GpuMetaBackend::attention_backward(Context& context, const Tensor& q, const Tensor& k,
                                        const Tensor& v, const Tensor&, const Tensor&,
                                        const Tensor&, const AttentionMask&, Tensor&, Tensor&,
                                        Tensor&) {
  const Tensor delta = context.empty(DType::f32, {q.size(0), q.size(2), q.size(1)});
  const int splits = cuda::gradient_splits(q.size(0), k.size(1), q.size(2), k.size(2));
  if (splits == 1) return;
  const std::int64_t rows = k.size(1) * k.size(2);
  const Tensor dk_parts = context.empty(DType::f32, {splits, k.size(0), rows, k.size(3)});
  const Tensor dv_parts = context.empty(DType::f32, {splits, k.size(0), rows, v.size(3)});
}

void GpuMetaBackend::residual_norm_backward(Context& context, NormKind, const Tensor&,
                                            const Tensor&, const Tensor& x, const Tensor&,
                                            const Tensor&, Tensor&, Tensor& dweight,
                                            Tensor& dbias) {
  if (!dweight.defined() && !dbias.defined()) return;
  const Tensor::Matrix in = x.matrix();
  (void)context.empty(
      DType::f32, {cuda::norm_parts(in.rows, in.cols).blocks, dbias.defined() ? 2 : 1, in.cols});
}

void GpuMetaBackend::embedding_backward(Context& context, const Tensor& tokens, const Tensor&,
                                        const TablePart&, Tensor&) {
  if (tokens.elements() > 0) (void)context.empty(DType::i64, {2, tokens.elements()});
}

void GpuMetaBackend::count_choices(Context& context, const Tensor& experts, Tensor& counts) {
  (void)context.empty(DType::i32, {cuda::chunk_counts(experts.elements(), 1, counts.elements())});
}

void GpuMetaBackend::count_choices_of_parts(Context& context, const Tensor& experts,
                                            Tensor& counts) {
  (void)context.empty(DType::i32,
                      {cuda::chunk_counts(experts.elements(), counts.size(0), counts.size(1))});
}

void GpuMetaBackend::limit_choices(Context& context, const Tensor& experts,
                                   std::int64_t expert_count, const ChoiceLimit& limit, Tensor&,
                                   Tensor&) {
  const std::int64_t segments = limit.sequences * limit.parts();
  const Tensor counts = context.empty(
      DType::i32, {2, cuda::chunk_counts(experts.elements(), segments, expert_count)});
  const Tensor late = context.empty(DType::i32, {segments * expert_count});
}

void GpuMetaBackend::count_top_experts(Context& context, const Tensor& scores, std::int64_t top_k,
                                       Tensor& counts) {
  const Tensor chosen = context.empty(DType::i32, {scores.size(0), top_k});
  (void)context.empty(DType::i32,
                      {cuda::chunk_counts(chosen.elements(), counts.size(0), scores.size(1))});
}

void GpuMetaBackend::sequence_balance(Context& context, const Tensor& scores, const Tensor&,
                                      std::int64_t, double, Tensor&) {
  (void)context.empty(DType::f64, {cuda::pieces_of(scores.size(0), cuda::kRowsPerPart), 1});
}

void GpuMetaBackend::column_sums(Context& context, const Tensor& matrix, Tensor&) {
  (void)context.empty(DType::f64,
                      {cuda::pieces_of(matrix.size(0), cuda::kRowsPerPart), matrix.size(1)});
}

void GpuMetaBackend::sort_by_expert(Context& context, const Tensor& experts, ExpertRows& rows) {
  (void)context.empty(DType::i32, {2, cuda::chunk_counts(experts.elements(), 1, rows.experts)});
}

void GpuMetaBackend::sum_of_squares(Context& context, const Tensor& values, Tensor&) {
  (void)context.empty(DType::f64, {cuda::square_parts(values.elements())});
}

}  // namespace sortie::trainer::ops
