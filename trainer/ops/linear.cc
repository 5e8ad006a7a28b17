// Checks of the linear products.
#include "trainer/ops/linear.h"

#include <algorithm>

#include "trainer/ops/copy.h"
#include "trainer/ops/cpu/tiling.h"
#include "trainer/ops/dispatch.h"

namespace sortie::trainer::ops {
namespace {

bool is_float(const Tensor& tensor) {
  return tensor.dtype() == DType::f32 || tensor.dtype() == DType::bf16;
}

void check_vector(const Tensor& vector, std::int64_t size, const char* name) {
  if (!vector.defined()) return;
  SORTIE_CHECK(vector.dtype() == DType::f32 && vector.dense() && vector.elements() == size,
               "{} {} {} for {} columns", name, dtype_name(vector.dtype()),
               vector.shape().to_string(), size);
}

/// The gradient of no rows: 0.
void write_empty_sum(ExecutionContext& context, WriteMode mode, Tensor& dw) {
  if (dw.defined() && mode == WriteMode::replace) fill(context, 0.0, dw);
}

void check_weight_gradient(const Tensor& dw, std::int64_t n, std::int64_t k) {
  if (!dw.defined()) return;
  SORTIE_CHECK(dw.dtype() == DType::f32 && dw.dense() && dw.shape() == Shape({n, k}),
               "dw is {} {}, expected dense f32 [{}, {}]", dtype_name(dw.dtype()),
               dw.shape().to_string(), n, k);
}

/// Counts 2 M N K.
void count_product(ExecutionContext& context, std::int64_t m, std::int64_t n, std::int64_t k) {
  context.count_flop(2 * m * n * k);
}

}  // namespace

PackedWeight::PackedWeight(Tensor plain) : plain_(std::move(plain)) {
  SORTIE_CHECK(plain_.shape().dims() == 2 && plain_.dense() && is_float(plain_), "weight {} {}",
               dtype_name(plain_.dtype()), plain_.shape().to_string());
}

void weight_changed(ExecutionContext& context, const PackedWeight& w) {
  dispatch<&Backend::weight_changed>(context, w);
}

void linear_forward(ExecutionContext& context, const Tensor& x, const PackedWeight& w,
                    const Tensor& bias, Tensor& y) {
  const Tensor& plain = w.plain();
  SORTIE_CHECK(is_float(x) && x.dtype() == plain.dtype() &&
                   (y.dtype() == x.dtype() || y.dtype() == DType::f32),
               "x {}, w {}, y {}", dtype_name(x.dtype()), dtype_name(plain.dtype()),
               dtype_name(y.dtype()));
  const auto in = x.matrix();
  const auto out = y.matrix();
  SORTIE_CHECK(in.rows == out.rows && in.cols == plain.size(1) && out.cols == plain.size(0),
               "x {}, w {}, y {}", x.shape().to_string(), plain.shape().to_string(),
               y.shape().to_string());
  check_vector(bias, out.cols, "bias");
  if (in.rows == 0) return;
  count_product(context, in.rows, out.cols, in.cols);
  dispatch<&Backend::linear_forward>(context, x, w, bias, y);
}

void linear_backward_data(ExecutionContext& context, const Tensor& dy, const PackedWeight& w,
                          Tensor& dx) {
  const Tensor& plain = w.plain();
  SORTIE_CHECK(is_float(dy) && dy.dtype() == plain.dtype() &&
                   (dx.dtype() == dy.dtype() || dx.dtype() == DType::f32),
               "dy {}, w {}, dx {}", dtype_name(dy.dtype()), dtype_name(plain.dtype()),
               dtype_name(dx.dtype()));
  const auto in = dy.matrix();
  const auto out = dx.matrix();
  SORTIE_CHECK(in.rows == out.rows && in.cols == plain.size(0) && out.cols == plain.size(1),
               "dy {}, w {}, dx {}", dy.shape().to_string(), plain.shape().to_string(),
               dx.shape().to_string());
  if (in.rows == 0) return;
  count_product(context, in.rows, in.cols, out.cols);
  dispatch<&Backend::linear_backward_data>(context, dy, w, dx);
}

void linear_backward_weight(ExecutionContext& context, const Tensor& dy, const Tensor& x,
                            Tensor& dw, Tensor& dbias, WriteMode mode_of_dw) {
  SORTIE_CHECK(is_float(dy) && dy.dtype() == x.dtype(), "dy {}, x {}", dtype_name(dy.dtype()),
               dtype_name(x.dtype()));
  const auto gradient = dy.matrix();
  const auto in = x.matrix();
  SORTIE_CHECK(gradient.rows == in.rows, "dy {}, x {}", dy.shape().to_string(),
               x.shape().to_string());
  check_weight_gradient(dw, gradient.cols, in.cols);
  check_vector(dbias, gradient.cols, "dbias");
  if (in.rows == 0) return write_empty_sum(context, mode_of_dw, dw);
  if (dw.defined()) count_product(context, in.rows, gradient.cols, in.cols);
  dispatch<&Backend::linear_backward_weight>(context, dy, x, dw, dbias, mode_of_dw);
}

void add_bias_gradient(ExecutionContext& context, const Tensor& dy, Tensor& dbias) {
  SORTIE_CHECK(is_float(dy), "dy {}", dtype_name(dy.dtype()));
  const auto gradient = dy.matrix();
  check_vector(dbias, gradient.cols, "dbias");
  if (gradient.rows == 0 || !dbias.defined()) return;
  Tensor none;
  // No product reads x here: only its rows and dtype would be checked.
  dispatch<&Backend::linear_backward_weight>(context, dy, dy, none, dbias, WriteMode::add);
}

namespace {

/// Checks the operands; returns h as a matrix.
Tensor::Matrix check_head(const Tensor& h, const PackedWeight& w, const Tensor& targets,
                          const CrossEntropySpec& spec) {
  const Tensor& plain = w.plain();
  const auto in = h.matrix();
  SORTIE_CHECK(is_float(h) && h.dtype() == plain.dtype() && in.cols == plain.size(1),
               "h {} {}, w {} {}", dtype_name(h.dtype()), h.shape().to_string(),
               dtype_name(plain.dtype()), plain.shape().to_string());
  SORTIE_CHECK(targets.dtype() == DType::i32 && targets.dense() && targets.elements() == in.rows,
               "targets {} {} for {} rows", dtype_name(targets.dtype()),
               targets.shape().to_string(), in.rows);
  SORTIE_CHECK(spec.vocab_size > 0, "a vocabulary of {}", spec.vocab_size);
  return in;
}

void check_loss(const Tensor& loss) {
  SORTIE_CHECK(loss.dtype() == DType::f64 && loss.dense() && loss.elements() == 2,
               "loss is {} {}, expected f64 [2]", dtype_name(loss.dtype()),
               loss.shape().to_string());
}

void check_head_gradients(const Tensor& h, const Tensor& dh, const Tensor& dw,
                          const Tensor& plain) {
  SORTIE_CHECK(dh.defined() || !dw.defined(), "dw comes with dh");
  if (!dh.defined()) return;
  const auto in = h.matrix();
  const auto out = dh.matrix();
  SORTIE_CHECK(dh.dtype() == h.dtype() && out.rows == in.rows && out.cols == in.cols,
               "dh {} {} for h {}", dtype_name(dh.dtype()), dh.shape().to_string(),
               h.shape().to_string());
  check_weight_gradient(dw, plain.size(0), plain.size(1));
}

/// Columns of this part that are tokens, not padding.
std::int64_t own_columns(const CrossEntropySpec& spec, const Tensor& plain) {
  return std::clamp<std::int64_t>(spec.vocab_size - spec.first_token, 0, plain.size(0));
}

}  // namespace

void linear_cross_entropy(ExecutionContext& context, const Tensor& h, const PackedWeight& w,
                          const Tensor& targets, const CrossEntropySpec& spec, Tensor& dh,
                          Tensor& dw, Tensor& loss) {
  const Tensor& plain = w.plain();
  const auto in = check_head(h, w, targets, spec);
  SORTIE_CHECK(spec.vocab_size <= plain.size(0) && spec.first_token == 0,
               "vocabulary {} of {} rows from {}", spec.vocab_size, plain.size(0),
               spec.first_token);
  check_loss(loss);
  check_head_gradients(h, dh, dw, plain);
  if (in.rows == 0) return write_empty_sum(context, spec.mode_of_dw, dw);
  const std::int64_t products = 1 + (dh.defined() ? 1 : 0) + (dw.defined() ? 1 : 0);
  count_product(context, products * in.rows, spec.vocab_size, in.cols);
  dispatch<&Backend::linear_cross_entropy>(context, h, w, targets, spec, dh, dw, loss);
}

std::int64_t cross_entropy_rows() {
  return kCrossEntropyRows;
}

CrossEntropyPart begin_cross_entropy(ExecutionContext& context, const Tensor& h,
                                     const PackedWeight& w, const Tensor& targets,
                                     const CrossEntropySpec& spec, bool with_gradients) {
  const auto in = check_head(h, w, targets, spec);
  SORTIE_CHECK(in.rows > 0 && in.rows <= kCrossEntropyRows, "{} rows in a stage", in.rows);
  const std::int64_t columns = own_columns(spec, w.plain());
  const std::int64_t tiles = (columns + kVocabularyTile - 1) / kVocabularyTile;
  CrossEntropyPart part;
  part.stats = context.empty(DType::f64, {in.rows, 3});
  part.tile_max = context.empty(DType::f32, {std::max<std::int64_t>(tiles, 1), in.rows});
  const std::int64_t kept = with_gradients ? tiles : std::min<std::int64_t>(tiles, 1);
  part.exponentials =
      context.empty(h.dtype(), {std::max<std::int64_t>(kept, 1), in.rows,
                                std::clamp<std::int64_t>(columns, 1, kVocabularyTile)});
  count_product(context, in.rows, columns, in.cols);
  dispatch<&Backend::begin_cross_entropy>(context, h, w, targets, spec, with_gradients, part);
  return part;
}

void finish_cross_entropy(ExecutionContext& context, const Tensor& h, const PackedWeight& w,
                          const Tensor& targets, const CrossEntropySpec& spec,
                          const CrossEntropyPart& part, const Tensor& all_stats, Tensor& dh,
                          Tensor& dw, Tensor& loss) {
  const Tensor& plain = w.plain();
  const auto in = check_head(h, w, targets, spec);
  check_loss(loss);
  check_head_gradients(h, dh, dw, plain);
  SORTIE_CHECK(part.stats.defined() && part.stats.size(0) == in.rows &&
                   all_stats.dtype() == DType::f64 && all_stats.dense() &&
                   all_stats.elements() % part.stats.elements() == 0,
               "stats {} for {} rows", all_stats.shape().to_string(), in.rows);
  const std::int64_t products = (dh.defined() ? 1 : 0) + (dw.defined() ? 1 : 0);
  count_product(context, products * in.rows, own_columns(spec, plain), in.cols);
  dispatch<&Backend::finish_cross_entropy>(context, h, w, targets, spec, part, all_stats, dh, dw,
                                           loss);
}

CrossEntropyResult read_cross_entropy(ExecutionContext& context, const Tensor& loss) {
  double values[2];
  copy_to_host<double>(context, loss, values);
  return {values[0], static_cast<std::int64_t>(values[1])};
}

void merge_low_rank(ExecutionContext& context, Tensor& up, const Tensor& down, float scale,
                    Tensor& w) {
  SORTIE_CHECK(up.dtype() == DType::f32 && up.dense() && down.dtype() == DType::f32 &&
                   down.dense() && w.dtype() == DType::f32 && w.dense() &&
                   w.shape() == Shape({up.size(0), down.size(1)}) && up.size(1) == down.size(0),
               "w {}, up {}, down {}", w.shape().to_string(), up.shape().to_string(),
               down.shape().to_string());
  count_product(context, w.size(0), w.size(1), up.size(1));
  dispatch<&Backend::merge_low_rank>(context, up, down, scale, w);
}

}  // namespace sortie::trainer::ops
