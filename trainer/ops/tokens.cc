#include "trainer/ops/tokens.h"

#include "trainer/ops/dispatch.h"

namespace sortie::trainer::ops {
namespace {

void check_whole(const Tensor& x, const Shape& shape, const char* name) {
  SORTIE_CHECK(x.dtype() == DType::i32 && x.dense() && x.shape() == shape,
               "{} is {} {}, expected dense i32 {}", name, dtype_name(x.dtype()),
               x.shape().to_string(), shape.to_string());
}

}  // namespace

void count_positions(ExecutionContext& context, std::int64_t first, Tensor& positions) {
  check_whole(positions, {positions.size(0), positions.size(-1)}, "positions");
  dispatch<&Backend::count_positions>(context, first, positions);
}

void find_documents(ExecutionContext& context, const Tensor& tokens, std::int32_t end,
                    const Tensor& targets, Tensor& starts, Tensor& positions) {
  check_whole(tokens, {tokens.size(0), tokens.size(-1)}, "tokens");
  if (targets.defined()) check_whole(targets, tokens.shape(), "targets");
  check_whole(starts, tokens.shape(), "starts");
  if (positions.defined()) check_whole(positions, tokens.shape(), "positions");
  dispatch<&Backend::find_documents>(context, tokens, end, targets, starts, positions);
}

void shift_tokens(ExecutionContext& context, const Tensor& tokens, const Tensor& starts,
                  std::int64_t distance, std::int32_t missing, Tensor& shifted) {
  check_whole(tokens, {tokens.size(0), tokens.size(-1)}, "tokens");
  if (starts.defined()) check_whole(starts, tokens.shape(), "starts");
  check_whole(shifted, tokens.shape(), "shifted");
  SORTIE_CHECK(distance >= 0, "distance {}", distance);
  dispatch<&Backend::shift_tokens>(context, tokens, starts, distance, missing, shifted);
}

}  // namespace sortie::trainer::ops
