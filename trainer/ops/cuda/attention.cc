// Attention: makes views of tensors and decides how work is split.
#include "trainer/ops/cuda/attention.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"
#include "trainer/ops/cuda/work_sizes.h"

namespace sortie::trainer::ops::cuda {
namespace {

template <class T>
Heads<T> heads_of(const Tensor& x) {
  Heads<T> view{
      .data = address<T>(x), .sample = x.stride(0), .token = x.stride(1), .head = x.stride(2)};
  const auto whole = [](std::int64_t elements) {
    return elements * static_cast<std::int64_t>(sizeof(T)) % 16 == 0;
  };
  view.in_pieces = reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && whole(x.size(3)) &&
                   whole(view.sample) && whole(view.token) && whole(view.head);
  return view;
}
/// An f32 view if the call adds to results over other keys, else an empty one.
Heads<float> wide_heads(bool is_f32, const Tensor& x) {
  return is_f32 ? heads_of<float>(x) : Heads<float>{};
}
template <class T>
Heads<T> narrow_heads(bool is_f32, const Tensor& x) {
  return is_f32 ? Heads<T>{} : heads_of<T>(x);
}

template <class T>
RowValues<T> row_values(const Tensor& lse) {
  return {address<T>(lse), lse.stride(0), lse.stride(1)};
}

/// `ahead`: query t is at the position of key t + ahead, unless the mask gives positions.
template <class T>
AttentionInputs<T> inputs_of(const Tensor& q, const Tensor& k, const Tensor& v,
                             const AttentionMask& mask, std::int64_t ahead = 0) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;
  SORTIE_CHECK(q.size(3) <= kMaxHeadSizeOnGpu && v.size(3) <= kMaxHeadSizeOnGpu,
               "heads of {} and {} dimensions: GPUs take up to {}", q.size(3), v.size(3),
               kMaxHeadSizeOnGpu);
  const AttentionPart part =
      mask.part.value_or(AttentionPart{.first_query = ahead, .first_key = 0, .tokens = k.size(1)});
  SORTIE_CHECK(part.tokens <= kMost, "sequences of {} tokens", part.tokens);
  const std::int64_t rows = q.size(0) * q.size(1) * q.size(2);
  SORTIE_CHECK(rows <= std::numeric_limits<std::uint32_t>::max(), "attention of {} rows", rows);
  AttentionInputs<T> in{.q = heads_of<const T>(q),
                        .k = heads_of<const T>(k),
                        .v = heads_of<const T>(v),
                        .sizes = {},
                        .mask = {}};
  in.sizes = {.batch = q.size(0),
              .queries = static_cast<int>(q.size(1)),
              .keys = static_cast<int>(k.size(1)),
              .heads = static_cast<int>(q.size(2)),
              .key_heads = static_cast<int>(k.size(2)),
              .dims = static_cast<int>(q.size(3)),
              .value_dims = static_cast<int>(v.size(3))};
  in.mask.scale = mask.scale;
  in.mask.window = static_cast<int>(mask.window > 0 ? std::min(mask.window, kMost) : kMost);
  in.mask.first_query = static_cast<int>(part.first_query);
  in.mask.first_key = static_cast<int>(part.first_key);
  in.mask.tokens = part.tokens;
  if (mask.document_start.defined()) {
    in.mask.starts = address<const std::int32_t>(mask.document_start);
    in.mask.starts_stride = mask.document_start.stride(0);
  }
  if (mask.dropout) in.mask.dropout = dropout_view(mask.dropout);
  in.mask.place = address<const std::int32_t>(mask.place);
  return in;
}

/// True if the kernels with warpgroup products support the inputs. For heads of at most 32
/// dimensions, half of their tiles would be empty.
template <class T>
bool in_warpgroup_tiles(const AttentionInputs<T>& in) {
  const int most = std::max(in.sizes.dims, in.sizes.value_dims);
  return most > 32 && most <= 128 && in.q.in_pieces && in.k.in_pieces && in.v.in_pieces &&
         in.mask.place == nullptr;
}

}  // namespace

void CudaBackend::attention_forward(Context& context, const Tensor& q, const Tensor& k,
                                    const Tensor& v, const AttentionMask& mask, Tensor& out,
                                    Tensor& lse) {
  with_float_type(q.dtype(), [&]<class T> {
    const bool merges = mask.part.has_value();
    AttentionOut<T> to{.result = merges ? AttentionResult::merge : AttentionResult::store,
                       .out = narrow_heads<T>(merges, out),
                       .out_f32 = wide_heads(merges, out),
                       .lse = row_values<float>(lse)};
    const cudaStream_t stream = current_stream(context);
    const AttentionInputs<T> in = inputs_of<T>(q, k, v, mask);
    if constexpr (std::is_same_v<T, bf16>)
      if (warpgroups_ && in_warpgroup_tiles(in)) return attention_forward_sm90(stream, in, to);
    attention_forward_tiles(stream, in, to);
  });
}

void CudaBackend::attention_backward(Context& context, const Tensor& q, const Tensor& k,
                                     const Tensor& v, const Tensor& out, const Tensor& lse,
                                     const Tensor& dout, const AttentionMask& mask, Tensor& dq,
                                     Tensor& dk, Tensor& dv) {
  with_float_type(q.dtype(), [&]<class T> {
    const cudaStream_t stream = current_stream(context);
    const AttentionInputs<T> in = inputs_of<T>(q, k, v, mask);
    const AttentionSizes& sizes = in.sizes;
    const Tensor delta = context.empty(DType::f32, {q.size(0), q.size(2), q.size(1)});
    attention_delta(stream, sizes, heads_of<const T>(out), heads_of<const T>(dout),
                    address<float>(delta));
    const bool adds = mask.part.has_value();
    AttentionGradients<T> to{
        .add = adds,
        .dq = narrow_heads<T>(adds, dq),
        .dk = narrow_heads<T>(adds, dk),
        .dv = narrow_heads<T>(adds, dv),
        .dq_f32 = wide_heads(adds, dq),
        .dk_f32 = wide_heads(adds, dk),
        .dv_f32 = wide_heads(adds, dv),
        .splits = gradient_splits(sizes.batch, sizes.keys, sizes.heads, sizes.key_heads)};
    Tensor dk_parts, dv_parts;
    if (to.splits > 1) {
      const std::int64_t rows = k.size(1) * k.size(2);
      dk_parts = context.empty(DType::f32, {to.splits, k.size(0), rows, k.size(3)});
      dv_parts = context.empty(DType::f32, {to.splits, k.size(0), rows, v.size(3)});
      to.dk_parts = address<float>(dk_parts);
      to.dv_parts = address<float>(dv_parts);
    }
    const auto run = [&](auto* kernels) {
      kernels(stream, in, heads_of<const T>(dout), row_values<const float>(lse),
              address<const float>(delta), to);
    };
    bool in_warpgroups = false;
    if constexpr (std::is_same_v<T, bf16>) {
      in_warpgroups = warpgroups_ && in_warpgroup_tiles(in) && heads_of<const T>(dout).in_pieces;
      if (in_warpgroups) run(attention_backward_sm90);
    }
    if (!in_warpgroups) run(attention_backward_tiles<T>);
    if (to.splits == 1) return;
    const auto join = [&](const float* parts, int columns, Heads<T> narrow, Heads<float> wide) {
      if (adds)
        join_key_gradient(stream, sizes, parts, to.splits, columns, true, wide);
      else
        join_key_gradient(stream, sizes, parts, to.splits, columns, false, narrow);
    };
    join(to.dk_parts, sizes.dims, to.dk, to.dk_f32);
    join(to.dv_parts, sizes.value_dims, to.dv, to.dv_f32);
  });
}

void CudaBackend::attention_cached(Context& context, const Tensor& q, const Tensor& k,
                                   const Tensor& v, const AttentionMask& mask, Tensor& out) {
  constexpr std::int64_t kKeysOfSplit = 256, kMaxSplits = 64, kRowsOfTile = 64;
  if (q.elements() == 0) return;
  with_float_type(q.dtype(), [&]<class T> {
    const cudaStream_t stream = current_stream(context);
    const AttentionInputs<T> in = inputs_of<T>(q, k, v, mask, k.size(1) - q.size(1));
    const AttentionSizes& sizes = in.sizes;
    const std::int64_t seen = mask.window > 0 ? std::min(mask.window, k.size(1)) : k.size(1);
    const std::int64_t rows = q.size(1) * (q.size(2) / k.size(2));
    const std::int64_t blocks = sizes.batch * k.size(2) * ((rows + kRowsOfTile - 1) / kRowsOfTile);
    const std::int64_t splits = std::clamp<std::int64_t>(
        std::min(2 * kEnoughBlocks / blocks, seen / kKeysOfSplit), 1, kMaxSplits);
    AttentionOut<T> to;
    to.pack_heads = true;
    if (splits == 1) {
      to.out = heads_of<T>(out);
      attention_forward_tiles(stream, in, to);
      return;
    }
    const Tensor parts =
        context.empty(DType::f32, {splits * q.size(0), q.size(1), q.size(2), v.size(3)});
    const Tensor lse = context.empty(DType::f32, {splits * q.size(0), q.size(2), q.size(1)});
    to.result = AttentionResult::parts;
    to.out_f32 = heads_of<float>(parts);
    to.lse = row_values<float>(lse);
    to.splits = static_cast<int>(splits);
    to.out_split = parts.elements() / splits;
    to.lse_split = lse.elements() / splits;
    attention_forward_tiles(stream, in, to);
    join_attention_parts(stream, sizes, address<const float>(parts), address<const float>(lse),
                         to.splits, heads_of<T>(out));
  });
}

}  // namespace sortie::trainer::ops::cuda
