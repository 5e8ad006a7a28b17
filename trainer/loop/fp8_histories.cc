#include "trainer/loop/fp8_histories.h"

#include "trainer/ops/copy.h"
#include "trainer/ops/fp8.h"

namespace sortie::trainer {

void Fp8Histories::join(ExecutionContext& context, const Tensor& values) {
  const auto join_with = [&](Communicator& group) {
    if (group.size() == 1) return;
    group.all_reduce_async(values, ReduceOp::max, context.record())->wait_on(context);
  };
  join_with(layout_.replicas());
  if (layout_.tensor_group() != nullptr) join_with(layout_.tensor_group()->communicator);
}

void Fp8Histories::roll(ExecutionContext& context) {
  if (!kept()) return;
  join(context, store_.fp8_current());
  ops::roll_fp8_history(context, store_.fp8_history(), store_.fp8_current());
}

void Fp8Histories::forget(ExecutionContext& context) {
  if (!kept()) return;
  ops::fill(context, 0.0, store_.fp8_current());
  store_.weights_changed();  // cached casts would not be recorded again
}

std::vector<ExtraPiece> Fp8Histories::pieces(std::vector<float>& values) {
  constexpr std::size_t kOfLayer = 3 * ops::kFp8History;
  std::vector<ExtraPiece> pieces;
  for (const auto& parameter : store_.parameters()) {
    if (!parameter->spec().fp8) continue;
    const Dims shape{3, ops::kFp8History};
    pieces.push_back({"fp8.amax." + parameter->name(), shape, Piece::whole(shape),
                      std::span(values).subspan(pieces.size() * kOfLayer, kOfLayer)});
  }
  return pieces;
}

std::vector<ExtraPiece> Fp8Histories::pieces_to_save() {
  if (!kept() || layout_.replicas().rank() != 0 || layout_.coordinate(Axis::tensor) != 0) return {};
  saved_ = ops::copy_to_host<float>(store_.context(), store_.fp8_history());
  return pieces(saved_);
}

std::vector<ExtraPiece> Fp8Histories::pieces_to_load() {
  read_.assign(static_cast<std::size_t>(elements()), 0.0f);
  return pieces(read_);
}

void Fp8Histories::loaded(ExecutionContext& context) {
  if (!kept()) return;
  read_.resize(static_cast<std::size_t>(elements()), 0.0f);  // where nothing was read
  ops::copy_from_host<float>(context, read_, store_.fp8_history());
  read_.clear();
  join(context, store_.fp8_history());
  forget(context);
}

}  // namespace sortie::trainer
