// Causal attention, backward. Probabilities are recomputed from the log-sum-exp of their row, so
// tiles are independent of each other. A task is a key head: it sums the gradients of its keys over
// its query heads one after another, so the bits do not depend on the number of threads. Within a
// head, tiles are processed column by column, so that the sums of a column's keys stay in the
// cache.
#include <cstring>

#include "trainer/ops/cpu/attention_tiles.h"
#include "trainer/ops/cpu/cpu_backend.h"
#include "trainer/ops/cpu/dropout_rows.h"

namespace sortie::trainer::ops {
namespace {

struct Gradients {
  Tensor &q, &k, &v;
};

class Backward {
 public:
  Backward(ExecutionContext& context, const Tensor& q, const Tensor& k, const Tensor& v,
           const Tensor& out, const Tensor& lse, const Tensor& dout, const AttentionMask& mask,
           const Gradients& d)
      : context_(context),
        q_(q),
        k_(k),
        v_(v),
        out_(out),
        lse_(lse),
        dout_(dout),
        mask_(mask),
        d_(d),
        tiles_(mask, tokens_, keys_),
        products_(context, tiles_, q.dtype(), dims_, value_dims_,
                  {q.stride(1), k.stride(1), v.stride(1), out.stride(1), dout.stride(1), dq_stride_,
                   dk_stride_, dv_stride_},
                  true),
        rows_(typed_kernels(context, q.dtype())) {
    const auto scores = static_cast<std::size_t>(tiles_.most_scores());
    const auto floats = [](std::int64_t rows, std::int64_t columns) {
      return static_cast<std::size_t>(rows * columns) * sizeof(float);
    };
    // Gradients that are added to (mask.part) are their own sums.
    const std::int64_t keys = adds_ ? 0 : keys_;
    const std::size_t parts[] = {scores * sizeof(float),
                                 scores * sizeof(float),
                                 scores * dtype_bytes(q.dtype()),
                                 scores * dtype_bytes(q.dtype()),
                                 products_.scratch_bytes(),
                                 floats(keys, dims_),
                                 floats(keys, value_dims_),
                                 floats(adds_ || tiles_.one_tile() ? 0 : tokens_, dims_),
                                 floats(tokens_, 1)};
    for (int thread = 0; thread < context.threads(); ++thread) memory_.emplace_back(context, parts);
  }

  void run() {
    parallel_tasks(context_, q_.size(0) * key_heads_, [&](std::int64_t task, int thread) {
      const std::int64_t b = task / key_heads_, kv = task % key_heads_;
      float* dk = key_sums(kDk, d_.k, b, kv, thread);
      float* dv = key_sums(kDv, d_.v, b, kv, thread);
      if (!adds_) {
        std::memset(dk, 0, static_cast<std::size_t>(keys_ * dims_) * sizeof(float));
        std::memset(dv, 0, static_cast<std::size_t>(keys_ * value_dims_) * sizeof(float));
      }
      for (std::int64_t h = kv * group_; h < (kv + 1) * group_; ++h) one_head(b, h, thread);
      if (adds_) return;
      to_tensor(dk, keys_, dims_, head_of(d_.k, b, kv));
      to_tensor(dv, keys_, value_dims_, head_of(d_.v, b, kv));
    });
    context_.poll();
  }

 private:
  enum Part { kScores, kDprobabilities, kProbabilities, kDscores, kProduct, kDk, kDv, kDq, kDelta };

  template <class T = void>
  T* part(Part which, int thread) const {
    return memory_[static_cast<std::size_t>(thread)].part<T>(which);
  }
  void to_tensor(const float* sums, std::int64_t rows, std::int64_t columns, const Head& to) {
    for (std::int64_t t = 0; t < rows; ++t) rows_.from_f32(sums + t * columns, to.row(t), columns);
  }
  /// Where the gradients of a key head are summed: in themselves (mask.part), or in the thread's
  /// memory.
  float* key_sums(Part which, const Tensor& gradient, std::int64_t b, std::int64_t kv, int thread) {
    return adds_ ? static_cast<float*>(static_cast<void*>(head_of(gradient, b, kv).data))
                 : part<float>(which, thread);
  }

  void one_head(std::int64_t b, std::int64_t h, int thread) {
    const Head result = head_of(out_, b, h), dresult = head_of(dout_, b, h);
    auto* delta = part<float>(kDelta, thread);
    for (std::int64_t t = 0; t < tokens_; ++t)
      delta[t] = rows_.dot(dresult.row(t), result.row(t), value_dims_);
    auto* dq = part<float>(kDq, thread);
    const bool sums_up = !adds_ && !tiles_.one_tile();
    if (sums_up) std::memset(dq, 0, static_cast<std::size_t>(tokens_ * dims_) * sizeof(float));
    for (std::int64_t column = 0; column < tiles_.columns(); ++column)
      for (std::int64_t block = 0; block < tiles_.blocks(); ++block) {
        const Tile tile = tiles_.tile(block, column);
        if (tiles_.any_seen(tile, b)) one_tile(b, h, tile, thread);
      }
    if (sums_up) to_tensor(dq, tokens_, dims_, head_of(d_.q, b, h));
  }

  void one_tile(std::int64_t b, std::int64_t h, const Tile& tile, int thread) {
    const TileProducts& products = products_.of(tile);
    const dnnl::stream& stream = cpu_state(context_).stream;
    void* scratch = part(kProduct, thread);
    const Head query = head_of(q_, b, h), key = head_of(k_, b, h / group_);
    const Head dresult = head_of(dout_, b, h);
    products.scores->run(stream, query.row(tile.begin), key.row(tile.first), part(kScores, thread),
                         nullptr, scratch, thread);
    products.dprobabilities->run(stream, dresult.row(tile.begin),
                                 head_of(v_, b, h / group_).row(tile.first),
                                 part(kDprobabilities, thread), nullptr, scratch, thread);
    score_gradients(b, h, tile, thread);
    void* dq = adds_ || tiles_.one_tile() ? static_cast<void*>(head_of(d_.q, b, h).row(tile.begin))
                                          : part<float>(kDq, thread) + tile.begin * dims_;
    float* dk = key_sums(kDk, d_.k, b, h / group_, thread);
    float* dv = key_sums(kDv, d_.v, b, h / group_, thread);
    products.dq->run(stream, part(kDscores, thread), key.row(tile.first), dq, nullptr, scratch,
                     thread);
    products.dk->run(stream, part(kDscores, thread), query.row(tile.begin),
                     dk + tile.first * dk_stride_, nullptr, scratch, thread);
    products.dv->run(stream, part(kProbabilities, thread), dresult.row(tile.begin),
                     dv + tile.first * dv_stride_, nullptr, scratch, thread);
  }

  /// Converts scores and dprobabilities to probabilities and dscores.
  void score_gradients(std::int64_t b, std::int64_t h, const Tile& tile, int thread) {
    const std::size_t element = dtype_bytes(q_.dtype());
    const std::int64_t line = tiles_.line(tile);
    const float* lse = lse_.data<float>() + b * lse_.stride(0) + h * lse_.stride(1);
    const float* delta = part<float>(kDelta, thread);
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const std::int64_t t = tile.begin + r;
      const auto [unseen, seen] = tiles_.seen(tile, b, t);
      const std::size_t at = static_cast<std::size_t>(r * line) * element;
      std::byte* p = part<std::byte>(kProbabilities, thread) + at;
      std::byte* ds = part<std::byte>(kDscores, thread) + at;
      const std::size_t zeros = static_cast<std::size_t>(seen == 0 ? tile.keys : unseen) * element;
      std::memset(p, 0, zeros);
      std::memset(ds, 0, zeros);
      if (seen == 0) continue;
      float* dp = part<float>(kDprobabilities, thread) + r * line + unseen;
      const std::int64_t number = tiles_.score_number(tile, h, t, unseen);
      if (mask_.dropout)
        drop(kernels(context_).f32, sizeof(float), mask_.dropout, b, number, dp, seen);
      rows_.softmax_backward(part<float>(kScores, thread) + r * line + unseen, dp, p + zeros,
                             ds + zeros, seen, tile.keys - unseen, mask_.scale, lse[t], delta[t]);
      if (mask_.dropout) drop(rows_, element, mask_.dropout, b, number, p + zeros, seen);
    }
  }

  ExecutionContext& context_;
  const Tensor &q_, &k_, &v_, &out_, &lse_, &dout_;
  const AttentionMask& mask_;
  const Gradients d_;
  const std::int64_t tokens_ = q_.size(1), heads_ = q_.size(2);
  const std::int64_t keys_ = k_.size(1), key_heads_ = k_.size(2);
  const std::int64_t group_ = heads_ / key_heads_, dims_ = q_.size(3), value_dims_ = v_.size(3);
  const bool adds_ = mask_.part.has_value();
  const Tiles tiles_;
  const std::int64_t dq_stride_ = adds_ || tiles_.one_tile() ? d_.q.stride(1) : dims_;
  const std::int64_t dk_stride_ = adds_ ? d_.k.stride(1) : dims_;
  const std::int64_t dv_stride_ = adds_ ? d_.v.stride(1) : value_dims_;
  const ProductTable products_;
  const TypedKernels& rows_;
  std::vector<ThreadMemory> memory_;
};

}  // namespace

void CpuBackend::attention_backward(ExecutionContext& context, const Tensor& q, const Tensor& k,
                                    const Tensor& v, const Tensor& out, const Tensor& lse,
                                    const Tensor& dout, const AttentionMask& mask, Tensor& dq,
                                    Tensor& dk, Tensor& dv) {
  Backward(context, q, k, v, out, lse, dout, mask, {dq, dk, dv}).run();
}

}  // namespace sortie::trainer::ops
