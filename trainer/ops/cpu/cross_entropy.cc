// LM head and cross-entropy, tile by tile of the vocabulary.
//
// Pass 1 computes the logits of one tile in f32 and, while they are in the cache, writes e =
// exp(logit - max of the row's tile) to the chunk's buffer in the model's dtype. Relative to the
// probability, e is exact to one rounding, whatever the size of the logit, so no logit is computed
// or read twice. Pass 2 scales each row's tiles to probabilities, subtracts the target, and
// computes both gradient products.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "trainer/ops/cpu/cpu_backend.h"
#include "trainer/ops/cpu/packed_weight.h"

namespace sortie::trainer::ops {
namespace {

constexpr std::int64_t kMaxRows = kCrossEntropyRows;

/// Factor of the gradients.
float scale_of(ExecutionContext& context, const CrossEntropySpec& spec) {
  if (!spec.step_scale.defined() || is_meta(context)) return spec.grad_scale;
  return *spec.step_scale.data<float>() * spec.grad_scale;
}

class CrossEntropy {
 public:
  CrossEntropy(ExecutionContext& context, const Tensor& h, const PackedWeight& w,
               const std::int32_t* targets, const CrossEntropySpec& spec, bool with_gradients)
      : context_(context),
        rows_kernels_(typed_kernels(context, h.dtype())),
        dtype_(h.dtype()),
        bytes_(dtype_bytes(h.dtype())),
        h_(h.matrix()),
        w_(w),
        copies_(copies_of(w)),
        targets_(targets),
        vocab_size_(spec.vocab_size),
        first_(spec.first_token),
        columns_(std::clamp<std::int64_t>(vocab_size_ - first_, 0, w.plain().size(0))),
        line_(std::min(columns_, kVocabularyTile)),
        tiles_((columns_ + kVocabularyTile - 1) / kVocabularyTile),
        grad_scale_(scale_of(context, spec)),
        with_gradients_(with_gradients) {}

  CrossEntropyResult run(Tensor& dh, Tensor& dw) {
    const std::int64_t rows = std::min(h_.rows, kMaxRows);
    line_ = kVocabularyTile;
    const std::size_t kept = with_gradients_ ? static_cast<std::size_t>(tiles_) : 1;
    take_logits(rows);
    e_ = context_.allocator().allocate(static_cast<std::size_t>(rows * line_) * bytes_ * kept);
    own_max_.resize(static_cast<std::size_t>(tiles_ * rows));
    max_ = own_max_.data();
    take_gradients(rows, dh, dw);
    for (std::int64_t begin = 0; begin < h_.rows; begin += kMaxRows) {
      begin_ = begin;
      rows_ = std::min(kMaxRows, h_.rows - begin);
      for (std::int64_t tile = 0; tile < tiles_; ++tile) exponentials(tile);
      if (!is_meta(context_)) finish_rows();
      if (!with_gradients_) continue;
      for (std::int64_t tile = 0; tile < tiles_; ++tile) gradients(tile);
      write_dh();
    }
    return result_;
  }

  /// The first stage: computes the exponentials of the own columns, and each row's stats.
  void begin(CrossEntropyPart& part) {
    rows_ = h_.rows;
    adopt(part);
    take_logits(rows_);
    for (std::int64_t tile = 0; tile < tiles_; ++tile) exponentials(tile);
    if (is_meta(context_)) return;
    double* stats = part.stats.data<double>();
    for (std::int64_t row = 0; row < rows_; ++row) {
      const auto [max, sum] = join_tiles(row);
      const std::int64_t own = target(row) - first_;
      const bool here = target(row) >= 0 && own >= 0 && own < columns_;
      stats[3 * row] = max;
      stats[3 * row + 1] = sum;
      stats[3 * row + 2] =
          here ? static_cast<double>(target_logit_[static_cast<std::size_t>(row)]) : 0.0;
    }
  }

  /// The second stage, with the stats of all parts.
  CrossEntropyResult finish(const CrossEntropyPart& part, const Tensor& all_stats, Tensor& dh,
                            Tensor& dw) {
    rows_ = h_.rows;
    adopt(part);
    log_sum_.resize(static_cast<std::size_t>(rows_));
    if (!is_meta(context_)) join_parts(all_stats);
    if (!with_gradients_) return result_;
    take_gradients(rows_, dh, dw);
    for (std::int64_t tile = 0; tile < tiles_; ++tile) gradients(tile);
    if (tiles_ == 0 && !is_meta(context_))
      std::memset(dh_sum_.get(), 0, static_cast<std::size_t>(rows_ * h_.cols) * sizeof(float));
    write_dh();
    return result_;
  }

 private:
  void take_logits(std::int64_t rows) {
    logits_ = context_.allocator().allocate(static_cast<std::size_t>(rows * kVocabularyTile) *
                                            sizeof(float));
    sum_.resize(static_cast<std::size_t>(tiles_ * rows));
    target_logit_.resize(static_cast<std::size_t>(rows));
    log_sum_.resize(static_cast<std::size_t>(rows));
  }
  void take_gradients(std::int64_t rows, Tensor& dh, Tensor& dw) {
    if (!with_gradients_) return;
    dh_ = dh.matrix();
    if (dw.defined()) dw_ = dw.data<float>();
    dh_sum_ =
        context_.allocator().allocate(static_cast<std::size_t>(rows * h_.cols) * sizeof(float));
  }
  /// Uses the buffers of `part`, which the caller owns.
  void adopt(const CrossEntropyPart& part) {
    e_ = std::shared_ptr<void>(std::shared_ptr<void>(), part.exponentials.raw());
    max_ = part.tile_max.data<float>();
  }
  std::int64_t width(std::int64_t tile) const {
    return std::min(kVocabularyTile, columns_ - tile * kVocabularyTile);
  }
  std::int64_t target(std::int64_t row) const { return targets_[begin_ + row]; }
  /// Column of the row's target in the tile; outside of the tile if the target is elsewhere.
  std::int64_t target_column(std::int64_t tile, std::int64_t row) const {
    return target(row) < 0 ? -1 : target(row) - first_ - tile * kVocabularyTile;
  }
  std::size_t at(std::int64_t tile, std::int64_t row) const {
    return static_cast<std::size_t>(tile * rows_ + row);
  }
  std::byte* e_tile(std::int64_t tile) const {
    const std::int64_t kept = with_gradients_ ? tile : 0;
    return static_cast<std::byte*>(e_.get()) +
           static_cast<std::size_t>(kept * rows_ * line_) * bytes_;
  }
  std::byte* e_row(std::int64_t tile, std::int64_t row) const {
    return e_tile(tile) + static_cast<std::size_t>(row * line_) * bytes_;
  }
  std::byte* h_row(std::int64_t row) const {
    return static_cast<std::byte*>(h_.data) + static_cast<std::size_t>(row * h_.stride) * bytes_;
  }
  const std::byte* w_tile(std::int64_t tile) const {
    return static_cast<const std::byte*>(w_.plain().raw()) +
           static_cast<std::size_t>(tile * kVocabularyTile * h_.cols) * bytes_;
  }

  void exponentials(std::int64_t tile) {
    const std::int64_t columns = width(tile);
    const MatmulSpec spec{.m = rows_,
                          .n = columns,
                          .k = h_.cols,
                          .input = dtype_,
                          .output = DType::f32,
                          .a_row = h_.stride,
                          .b_row = 0,
                          .b_col = 0,
                          .c_row = kVocabularyTile};
    const auto matmul = find_matmul(context_, spec);
    const auto packed = copies_.tile_forward[static_cast<std::size_t>(tile)].get(
        context_, dtype_, w_tile(tile), 1, h_.cols, matmul->packed_desc());
    auto* logits = static_cast<float*>(logits_.get());
    run_matmul(context_, spec, h_row(begin_), packed.get(), logits);
    parallel_ranges(context_, rows_, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const float* line = logits + row * kVocabularyTile;
        const std::int64_t column = target_column(tile, row);
        if (column >= 0 && column < columns)
          target_logit_[static_cast<std::size_t>(row)] = line[column];
        sum_[at(tile, row)] =
            rows_kernels_.exp_row(line, e_row(tile, row), columns, &max_[at(tile, row)]);
      }
    });
    context_.poll();
  }

  struct RowSum {
    double max = -std::numeric_limits<double>::infinity(), sum = 0.0;
  };
  /// The largest logit of a row over all tiles, and the sum of exp(logit - largest).
  RowSum join_tiles(std::int64_t row) const {
    if (tiles_ == 0) return {};
    float max = max_[at(0, row)];
    for (std::int64_t tile = 1; tile < tiles_; ++tile) max = std::max(max, max_[at(tile, row)]);
    double sum = 0.0;
    for (std::int64_t tile = 0; tile < tiles_; ++tile)
      sum += static_cast<double>(sum_[at(tile, row)]) *
             std::exp(static_cast<double>(max_[at(tile, row)]) - static_cast<double>(max));
    return {static_cast<double>(max), sum};
  }

  /// The same over the parts; adds the losses in row order.
  void join_parts(const Tensor& all_stats) {
    const double* stats = all_stats.data<double>();
    const std::int64_t parts = all_stats.elements() / (3 * rows_);
    for (std::int64_t row = 0; row < rows_; ++row) {
      if (target(row) < 0) continue;
      SORTIE_CHECK(target(row) < vocab_size_, "target {} of {}", target(row), vocab_size_);
      const auto of = [&](std::int64_t part, int what) {
        return stats[(part * rows_ + row) * 3 + what];
      };
      double max = of(0, 0), sum = 0.0, logit = 0.0;
      for (std::int64_t part = 1; part < parts; ++part) max = std::max(max, of(part, 0));
      for (std::int64_t part = 0; part < parts; ++part) {
        sum += of(part, 1) * std::exp(of(part, 0) - max);
        logit += of(part, 2);
      }
      log_sum_[static_cast<std::size_t>(row)] = max + std::log(sum);
      result_.loss_sum += log_sum_[static_cast<std::size_t>(row)] - logit;
      ++result_.count;
    }
  }

  /// Joins the tiles' maxima and sums; adds the losses in row order.
  void finish_rows() {
    for (std::int64_t row = 0; row < rows_; ++row) {
      if (target(row) < 0) continue;
      SORTIE_CHECK(target(row) < vocab_size_, "target {} of {}", target(row), vocab_size_);
      const auto [max, sum] = join_tiles(row);
      const double log_sum = max + std::log(sum);
      log_sum_[static_cast<std::size_t>(row)] = log_sum;
      result_.loss_sum +=
          log_sum - static_cast<double>(target_logit_[static_cast<std::size_t>(row)]);
      ++result_.count;
    }
  }

  /// Converts e of one row to grad_scale * (probability - onehot).
  void to_gradient(std::int64_t tile, std::int64_t row) {
    std::byte* line = e_row(tile, row);
    const std::int64_t columns = width(tile);
    if (target(row) < 0) {
      std::memset(line, 0, static_cast<std::size_t>(columns) * bytes_);
      return;
    }
    const double to_probability = std::exp(static_cast<double>(max_[at(tile, row)]) -
                                           log_sum_[static_cast<std::size_t>(row)]);
    const std::int64_t column = target_column(tile, row);
    const bool here = column >= 0 && column < columns;
    std::byte* element = line + static_cast<std::size_t>(here ? column : 0) * bytes_;
    float kept = 0.0f;
    rows_kernels_.to_f32(element, &kept, 1);
    rows_kernels_.scale(line, columns, static_cast<float>(to_probability) * grad_scale_);
    if (!here) return;
    // From the probability before rounding: p - 1 cancels if p is close to 1.
    const float gradient = (kept * static_cast<float>(to_probability) - 1.0f) * grad_scale_;
    rows_kernels_.from_f32(&gradient, element, 1);
  }

  void gradients(std::int64_t tile) {
    const std::int64_t columns = width(tile);
    parallel_ranges(context_, rows_, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) to_gradient(tile, row);
    });
    const MatmulSpec data{.m = rows_,
                          .n = h_.cols,
                          .k = columns,
                          .input = dtype_,
                          .output = DType::f32,
                          .a_row = line_,
                          .b_row = 0,
                          .b_col = 0,
                          .c_row = h_.cols,
                          .accumulate = tile > 0};
    const auto matmul = find_matmul(context_, data);
    const auto packed = copies_.tile_backward_data[static_cast<std::size_t>(tile)].get(
        context_, dtype_, w_tile(tile), h_.cols, 1, matmul->packed_desc());
    run_matmul(context_, data, e_tile(tile), packed.get(), dh_sum_.get());
    const MatmulSpec weight{.m = columns,
                            .n = h_.cols,
                            .k = rows_,
                            .input = dtype_,
                            .output = DType::f32,
                            .a_row = 1,
                            .a_col = line_,
                            .b_row = h_.stride,
                            .c_row = h_.cols,
                            .accumulate = true};
    if (dw_ != nullptr)
      run_matmul(context_, weight, e_tile(tile), h_row(begin_),
                 dw_ + tile * kVocabularyTile * h_.cols);
    context_.poll();
  }

  void write_dh() {
    const auto* sums = static_cast<const float*>(dh_sum_.get());
    parallel_ranges(context_, rows_, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        rows_kernels_.from_f32(sums + row * h_.cols,
                               static_cast<std::byte*>(dh_.data) +
                                   static_cast<std::size_t>((begin_ + row) * dh_.stride) * bytes_,
                               h_.cols);
    });
  }

  ExecutionContext& context_;
  const TypedKernels& rows_kernels_;
  DType dtype_;
  std::size_t bytes_;
  Tensor::Matrix h_;
  Tensor::Matrix dh_{};
  const PackedWeight& w_;
  CpuPackedCopies& copies_;
  const std::int32_t* targets_;
  std::int64_t vocab_size_;       // of the whole vocabulary
  std::int64_t first_, columns_;  // of this part
  std::int64_t line_;             // elements between rows of exponentials
  std::int64_t tiles_;
  float grad_scale_;
  bool with_gradients_;
  float* dw_ = nullptr;  // nullptr: not wanted

  std::int64_t begin_ = 0, rows_ = 0;          // the current chunk
  std::shared_ptr<void> logits_, e_, dh_sum_;  // [rows, tile]; [tiles, rows, tile]; [rows, K]
  std::vector<float> own_max_, sum_;           // [tiles, rows]
  float* max_ = nullptr;                       // [tiles, rows]
  std::vector<float> target_logit_;            // [rows]
  std::vector<double> log_sum_;                // [rows]
  CrossEntropyResult result_;
};

}  // namespace

namespace {

void add_loss(const CrossEntropyResult& result, const CrossEntropySpec& spec, Tensor& loss) {
  double* sums = loss.data<double>();
  sums[0] += spec.loss_scale * result.loss_sum;
  sums[1] += static_cast<double>(result.count);
}

}  // namespace

void CpuBackend::linear_cross_entropy(ExecutionContext& context, const Tensor& h,
                                      const PackedWeight& w, const Tensor& targets,
                                      const CrossEntropySpec& spec, Tensor& dh, Tensor& dw,
                                      Tensor& loss) {
  if (dw.defined() && spec.mode_of_dw == WriteMode::replace) fill(context, 0.0, dw);
  const CrossEntropyResult result =
      CrossEntropy(context, h, w, targets.data<std::int32_t>(), spec, dh.defined()).run(dh, dw);
  if (!is_meta(context)) add_loss(result, spec, loss);
}

void CpuBackend::begin_cross_entropy(ExecutionContext& context, const Tensor& h,
                                     const PackedWeight& w, const Tensor& targets,
                                     const CrossEntropySpec& spec, bool with_gradients,
                                     CrossEntropyPart& part) {
  CrossEntropy(context, h, w, targets.data<std::int32_t>(), spec, with_gradients).begin(part);
}

void CpuBackend::finish_cross_entropy(ExecutionContext& context, const Tensor& h,
                                      const PackedWeight& w, const Tensor& targets,
                                      const CrossEntropySpec& spec, const CrossEntropyPart& part,
                                      const Tensor& all_stats, Tensor& dh, Tensor& dw,
                                      Tensor& loss) {
  const CrossEntropyResult result =
      CrossEntropy(context, h, w, targets.data<std::int32_t>(), spec, dh.defined())
          .finish(part, all_stats, dh, dw);
  if (!is_meta(context)) add_loss(result, spec, loss);
}

}  // namespace sortie::trainer::ops
