// Checks of the norms.
#include "trainer/ops/norm.h"

#include "trainer/ops/dispatch.h"

namespace sortie::trainer::ops {
namespace {

void check_like(const Tensor& x, const Tensor& like, const char* name) {
  SORTIE_CHECK(
      x.dtype() == like.dtype() && x.elements() == like.elements() && x.size(-1) == like.size(-1),
      "{} is {} {}, expected {} {}", name, dtype_name(x.dtype()), x.shape().to_string(),
      dtype_name(like.dtype()), like.shape().to_string());
}

void check_f32(const Tensor& x, std::int64_t elements, const char* name) {
  SORTIE_CHECK(x.dtype() == DType::f32 && x.dense() && x.elements() == elements,
               "{} is {} {}, expected {} dense f32", name, dtype_name(x.dtype()),
               x.shape().to_string(), elements);
}

}  // namespace

void residual_norm_forward(ExecutionContext& context, NormKind kind, const Tensor& residual,
                           const Tensor& branch, const Tensor& weight, const Tensor& bias,
                           float eps, Tensor& residual_out, Tensor& y, Tensor& stats) {
  const auto rows = residual.matrix();
  check_like(y, residual, "y");
  check_like(residual_out, residual, "residual_out");
  if (branch.defined())
    check_like(branch, residual, "branch");
  else
    SORTIE_CHECK(residual_out.raw() == residual.raw(), "without branch nothing is added");
  check_f32(weight, rows.cols, "weight");
  if (bias.defined()) check_f32(bias, rows.cols, "bias");
  check_f32(stats, 2 * rows.rows, "stats");
  SORTIE_CHECK(kind == NormKind::layer || !bias.defined(), "an RMS norm has no bias");
  if (rows.rows > 0)
    dispatch<&Backend::residual_norm_forward>(context, kind, residual, branch, weight, bias, eps,
                                              residual_out, y, stats);
}

void residual_norm_backward(ExecutionContext& context, NormKind kind, const Tensor& dy,
                            const Tensor& dresidual, const Tensor& x, const Tensor& weight,
                            const Tensor& stats, Tensor& dx, Tensor& dweight, Tensor& dbias) {
  const auto rows = x.matrix();
  check_like(dy, x, "dy");
  check_like(dx, x, "dx");
  if (dresidual.defined()) check_like(dresidual, x, "dresidual");
  check_f32(weight, rows.cols, "weight");
  if (dweight.defined()) check_f32(dweight, rows.cols, "dweight");
  if (dbias.defined()) check_f32(dbias, rows.cols, "dbias");
  check_f32(stats, 2 * rows.rows, "stats");
  SORTIE_CHECK(kind == NormKind::layer || !dbias.defined(), "an RMS norm has no bias");
  if (rows.rows > 0)
    dispatch<&Backend::residual_norm_backward>(context, kind, dy, dresidual, x, weight, stats, dx,
                                               dweight, dbias);
}

}  // namespace sortie::trainer::ops
