#include "trainer/ops/meta/meta_backend.h"

#include "trainer/ops/cpu/packed_weight.h"

namespace sortie::trainer::ops {
namespace {

/// Allocates what the products with every expert's weight need. The routing is not known: all
/// experts are assumed to have the same number of rows.
void plan_grouped(ExecutionContext& context, const ExpertRows& rows, const Tensor& in,
                  std::span<const PackedWeight* const> weights, bool backward, const Tensor& out) {
  const std::int64_t each = rows.capacity / std::max<std::int64_t>(rows.experts, 1);
  std::vector<std::shared_ptr<const void>> held;
  std::size_t scratch = 0;
  for (const PackedWeight* weight : weights) {
    const Tensor& plain = weight->plain();
    const auto matmul = find_matmul(context, {.m = grouped_piece(each),
                                              .n = out.size(1),
                                              .k = in.size(1),
                                              .input = in.dtype(),
                                              .output = out.dtype(),
                                              .a_row = in.stride(0),
                                              .c_row = out.stride(0),
                                              .single_thread = true});
    CpuPackedCopies& copies = copies_of(*weight);
    PackedForms& forms = backward ? copies.backward_data : copies.forward;
    held.push_back(forms.get(context, plain.dtype(), plain.raw(), backward ? plain.size(1) : 1,
                             backward ? 1 : plain.size(1), matmul->packed_desc()));
    scratch = std::max(scratch, matmul->scratch_bytes());
  }
  (void)context.allocator().allocate((scratch + 63) / 64 * 64 *
                                     static_cast<std::size_t>(context.threads()));
}

}  // namespace

void MetaBackend::copy_to_host(Context&, const Tensor& from, std::span<std::byte>) {
  SORTIE_CHECK(false, "{} {} on the meta device has no values", dtype_name(from.dtype()),
               from.shape().to_string());
}

void MetaBackend::grouped_linear_forward(Context& context, const ExpertRows& rows, const Tensor& x,
                                         std::span<const PackedWeight* const> weights, Tensor& y) {
  plan_grouped(context, rows, x, weights, false, y);
}

void MetaBackend::grouped_linear_backward_data(Context& context, const ExpertRows& rows,
                                               const Tensor& dy,
                                               std::span<const PackedWeight* const> weights,
                                               Tensor& dx) {
  plan_grouped(context, rows, dy, weights, true, dx);
}

}  // namespace sortie::trainer::ops
