// Causal attention, forward. Every block of queries processes its keys tile by tile; with more than
// one tile, the softmax is computed online (Milakov and Gimelshein 2018, Dao et al. 2022). Every
// product runs in oneDNN on one thread, so the bits do not depend on the number of threads.
#include <cmath>
#include <cstring>
#include <limits>

#include "trainer/ops/cpu/attention_tiles.h"
#include "trainer/ops/cpu/cpu_backend.h"
#include "trainer/ops/cpu/dropout_rows.h"

namespace sortie::trainer::ops {
namespace {

class Forward {
 public:
  Forward(ExecutionContext& context, const Tensor& q, const Tensor& k, const Tensor& v,
          const AttentionMask& mask, Tensor& out, Tensor& lse)
      : context_(context),
        q_(q),
        k_(k),
        v_(v),
        mask_(mask),
        out_(out),
        lse_(lse),
        tiles_(mask, tokens_, k.size(1)),
        products_(context, tiles_, q.dtype(), q.size(3), value_dims_,
                  {q.stride(1), k.stride(1), v.stride(1), sums_stride_}, false),
        rows_(typed_kernels(context, q.dtype())),
        f32_(kernels(context).f32) {
    const auto scores = static_cast<std::size_t>(tiles_.most_scores());
    const auto block = static_cast<std::size_t>(tiles_.one_tile() ? 0 : tiles_.tiling().rows);
    const std::size_t sums = continues_ ? 0 : block * static_cast<std::size_t>(value_dims_);
    const std::size_t parts[] = {scores * sizeof(float), scores * dtype_bytes(q.dtype()),
                                 products_.scratch_bytes(), sums * sizeof(float),
                                 block * 2 * sizeof(float)};
    for (int thread = 0; thread < context.threads(); ++thread) memory_.emplace_back(context, parts);
  }

  void run() {
    const std::int64_t heads = q_.size(0) * heads_, blocks = tiles_.blocks();
    if (tiles_.one_tile()) {
      parallel_tasks(context_, heads, [&](std::int64_t task, int thread) {
        for (std::int64_t block = 0; block < blocks; ++block)
          one_tile(task / heads_, task % heads_, tiles_.tile(block, 0), thread);
      });
    } else {
      // The last blocks see the most keys. They run first, so that no thread ends with a long one.
      parallel_tasks(context_, heads * blocks, [&](std::int64_t task, int thread) {
        const std::int64_t head = task % heads;
        many_tiles(head / heads_, head % heads_, blocks - 1 - task / heads, thread);
      });
    }
    context_.poll();
  }

 private:
  enum Part { kScores, kProbabilities, kProduct, kSums, kRowState };

  /// Writes the tile's scores q k^T, not yet scaled, to part kScores.
  void scores(std::int64_t b, std::int64_t h, const Tile& tile, int thread) {
    const ThreadMemory& own = memory_[static_cast<std::size_t>(thread)];
    products_.of(tile).scores->run(cpu_state(context_).stream, head_of(q_, b, h).row(tile.begin),
                                   head_of(k_, b, h / group_).row(tile.first), own.part(kScores),
                                   nullptr, own.part(kProduct), thread);
  }
  /// Writes, or with several tiles adds, the tile's probabilities times its values to `to`.
  void values(std::int64_t b, std::int64_t h, const Tile& tile, void* to, int thread) {
    const ThreadMemory& own = memory_[static_cast<std::size_t>(thread)];
    products_.of(tile).values->run(cpu_state(context_).stream, own.part(kProbabilities),
                                   head_of(v_, b, h / group_).row(tile.first), to, nullptr,
                                   own.part(kProduct), thread);
  }
  /// Calls softmax(scores, probabilities, row, n, width) for the seen keys of every row and applies
  /// dropout. The other probabilities are 0.
  template <class Softmax>
  void for_each_row(std::int64_t b, std::int64_t h, const Tile& tile, int thread,
                    const Softmax& softmax) {
    const ThreadMemory& own = memory_[static_cast<std::size_t>(thread)];
    const std::size_t element = dtype_bytes(q_.dtype());
    const std::int64_t line = tiles_.line(tile);
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const std::int64_t t = tile.begin + r;
      const auto [unseen, seen] = tiles_.seen(tile, b, t);
      std::byte* to =
          own.part<std::byte>(kProbabilities) + static_cast<std::size_t>(r * line) * element;
      if (seen == 0) {
        std::memset(to, 0, static_cast<std::size_t>(tile.keys) * element);
        continue;
      }
      std::memset(to, 0, static_cast<std::size_t>(unseen) * element);
      std::byte* from = to + static_cast<std::size_t>(unseen) * element;
      softmax(own.part<float>(kScores) + r * line + unseen, from, r, seen, tile.keys - unseen);
      if (mask_.dropout)
        drop(rows_, element, mask_.dropout, b, tiles_.score_number(tile, h, t, unseen), from, seen);
    }
  }

  float* row_lse(std::int64_t b, std::int64_t h) {
    return lse_.data<float>() + b * lse_.stride(0) + h * lse_.stride(1);
  }

  void one_tile(std::int64_t b, std::int64_t h, const Tile& tile, int thread) {
    scores(b, h, tile, thread);
    for_each_row(b, h, tile, thread,
                 [&](float* s, void* p, std::int64_t r, std::int64_t n, std::int64_t width) {
                   row_lse(b, h)[tile.begin + r] = rows_.softmax(s, p, n, width, mask_.scale);
                 });
    values(b, h, tile, head_of(out_, b, h).row(tile.begin), thread);
  }

  void many_tiles(std::int64_t b, std::int64_t h, std::int64_t block, int thread) {
    const ThreadMemory& own = memory_[static_cast<std::size_t>(thread)];
    const Tile all = tiles_.tile(block, 0);
    // [rows, value_dims], with probabilities that are not yet normalised.
    auto* sums = static_cast<float*>(
        continues_ ? static_cast<void*>(head_of(out_, b, h).row(all.begin)) : own.part(kSums));
    auto* max = own.part<float>(kRowState);
    float* total = max + tiles_.tiling().rows;
    float* lse = row_lse(b, h) + all.begin;
    begin_rows(all, lse, sums, max, total);
    for (std::int64_t column = 0; column < tiles_.columns(); ++column) {
      const Tile tile = tiles_.tile(block, column);
      if (!tiles_.any_seen(tile, b)) continue;
      scores(b, h, tile, thread);
      for_each_row(b, h, tile, thread,
                   [&](float* s, void* p, std::int64_t r, std::int64_t n, std::int64_t width) {
                     const float keep =
                         rows_.softmax_part(s, p, n, width, mask_.scale, &max[r], &total[r]);
                     if (keep != 1.0f) f32_.scale(sums + r * sums_stride_, value_dims_, keep);
                   });
      values(b, h, tile, sums, thread);
    }
    for (std::int64_t r = 0; r < all.rows; ++r) {
      if (total[r] == 0.0f) continue;  // no key was seen, here or in earlier calls
      f32_.scale(sums + r * sums_stride_, value_dims_, 1.0f / total[r]);
      if (!continues_)
        rows_.from_f32(sums + r * sums_stride_, head_of(out_, b, h).row(all.begin + r),
                       value_dims_);
      lse[r] = max[r] + std::log(total[r]);
    }
  }

  /// Initial state of the rows: empty, or the result over other keys, which stands for
  /// probabilities relative to exp(lse) that sum up to 1.
  void begin_rows(const Tile& all, const float* lse, float* sums, float* max, float* total) const {
    if (!continues_) {
      std::memset(sums, 0, static_cast<std::size_t>(all.rows * value_dims_) * sizeof(float));
      std::fill_n(max, all.rows, -std::numeric_limits<float>::infinity());
      std::fill_n(total, all.rows, 0.0f);
      return;
    }
    for (std::int64_t r = 0; r < all.rows; ++r) {
      max[r] = lse[r];
      total[r] = std::isinf(lse[r]) ? 0.0f : 1.0f;
    }
  }

  ExecutionContext& context_;
  const Tensor &q_, &k_, &v_;
  const AttentionMask& mask_;
  Tensor &out_, &lse_;
  const std::int64_t tokens_ = q_.size(1), heads_ = q_.size(2), group_ = heads_ / k_.size(2);
  const std::int64_t value_dims_ = v_.size(3);
  const bool continues_ = mask_.part.has_value();
  const Tiles tiles_;
  const std::int64_t sums_stride_ = continues_ || tiles_.one_tile() ? out_.stride(1) : value_dims_;
  const ProductTable products_;
  const TypedKernels &rows_, &f32_;
  std::vector<ThreadMemory> memory_;
};

}  // namespace

void CpuBackend::attention_forward(ExecutionContext& context, const Tensor& q, const Tensor& k,
                                   const Tensor& v, const AttentionMask& mask, Tensor& out,
                                   Tensor& lse) {
  Forward(context, q, k, v, mask, out, lse).run();
}

}  // namespace sortie::trainer::ops
