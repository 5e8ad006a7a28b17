#include "trainer/state/state_view.h"

#include <algorithm>

#include "common/base/check.h"
#include "trainer/hf/open_model.h"

namespace sortie::trainer {
namespace {

/// A flat buffer, and the prefix of its tensors' names.
struct NamedBuffer {
  const char* prefix;
  std::span<float> values;
  bool moment = false;  // of what is trained; the rest has none
};

/// Of a whole parameter of any shape the whole, so that it is stored under its plain name.
Piece piece_of(const Parameter& parameter, const GlobalBlock& block, const Dims& shape) {
  if (block.elements() == parameter.spec().shape.elements()) return Piece::whole(shape);
  if (shape.size() == 1) return Piece::box({block.row}, {block.rows});
  return Piece::box({block.row, block.column}, {block.rows, block.columns});
}

}  // namespace

StateView::StateView(ParameterStore& store)
    : store_((store.await_values(), store)),
      master_(store.context(), store.master()),
      moment1_(store.context(), store.moment1()),
      moment2_(store.context(), store.moment2()) {}

std::vector<StatePiece> StateView::pieces(TiedCopies tied) const {
  const std::array<NamedBuffer, 3> named = {{{"model.", master_.span()},
                                             {"optimizer.m.", moment1_.span(), true},
                                             {"optimizer.v.", moment2_.span(), true}}};
  std::vector<StatePiece> pieces;
  for (const NamedBuffer& buffer : named) {
    if (buffer.values.empty()) continue;  // without an optimizer
    for (const auto& parameter : store_.parameters()) {
      const ParameterSpec& spec = parameter->spec();
      if (buffer.moment && !parameter->trained()) continue;
      if (!spec.tied_to.empty() && tied == TiedCopies::leave_out) continue;
      const Dims shape = dims_of(spec.shape);
      for (const OwnPart& part : parameter->own_parts()) {
        Piece piece = piece_of(*parameter, *part.block, shape);
        piece.begin += part.in_block;
        piece.end = piece.begin + part.run.flat.elements();
        const std::int64_t at = buffer.moment ? part.run.moment : part.run.master;
        pieces.push_back(
            {.name = buffer.prefix + (spec.tied_to.empty() ? spec.name : spec.tied_to),
             .shape = shape,
             .piece = std::move(piece),
             .values = buffer.values.subspan(static_cast<std::size_t>(at),
                                             static_cast<std::size_t>(part.run.flat.elements())),
             .parameter = parameter.get(),
             .moment = buffer.moment,
             .repeated = part.block->repeated,
             .alone = store_.keeps_share_of(*parameter)});
      }
    }
  }
  return pieces;
}

std::int64_t elements_of(const std::vector<StatePiece>& pieces) {
  std::int64_t sum = 0;
  for (const StatePiece& piece : pieces) sum += piece.piece.elements();
  return sum;
}

std::vector<StatePiece> share_of(const std::vector<StatePiece>& pieces, std::size_t index,
                                 std::size_t count) {
  SORTIE_CHECK(index < count, "share {} of {}", index, count);
  const auto border = [total = elements_of(pieces),
                       n = static_cast<std::int64_t>(count)](std::size_t i) {
    const auto at = static_cast<std::int64_t>(i);
    return total / n * at + std::min(at, total % n);
  };
  const std::int64_t begin = border(index), end = border(index + 1);
  std::vector<StatePiece> share;
  std::int64_t first = 0;  // of the piece, among all elements
  for (const StatePiece& piece : pieces) {
    const std::int64_t size = piece.piece.elements();
    const std::int64_t from = std::max<std::int64_t>(begin - first, 0);
    const std::int64_t to = std::min(end - first, size);
    if (from < to) {
      StatePiece& part = share.emplace_back(piece);
      part.piece.end = part.piece.begin + to;
      part.piece.begin += from;
      part.values =
          piece.values.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from));
    }
    first += size;
  }
  return share;
}

std::vector<std::span<std::byte>> StateView::buffers() const {
  SORTIE_CHECK(!store_.sharded(), "replicas of a sharded store have other values");
  std::vector<std::span<std::byte>> buffers;
  for (const auto* buffer : {&master_, &moment1_, &moment2_})
    buffers.push_back(std::as_writable_bytes(buffer->span()));
  return buffers;
}

}  // namespace sortie::trainer
