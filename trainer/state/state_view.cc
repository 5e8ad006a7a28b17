#include "trainer/state/state_view.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "common/base/check.h"
#include "trainer/hf/open_model.h"

namespace sortie::trainer {
namespace {

/// A flat buffer, and the prefix of its tensors' names.
struct NamedBuffer {
  std::string prefix;
  std::span<float> values;
  bool moment = false;  // of what is trained; the rest has none
  bool alone = false;
};

std::span<float> values_in(const Tensor& flat) {
  if (!flat.defined()) return {};
  return {static_cast<float*>(flat.raw()), static_cast<std::size_t>(flat.elements())};
}

/// Of a whole parameter of any shape the whole, so that it is stored under its plain name.
Piece piece_of(const Parameter& parameter, const GlobalBlock& block, const Dims& shape) {
  if (block.elements() == parameter.spec().shape.elements()) return Piece::whole(shape);
  if (shape.size() == 1) return Piece::box({block.row}, {block.rows});
  return Piece::box({block.row, block.column}, {block.rows, block.columns});
}

}  // namespace

std::string momentum_prefix(int member) {
  return fmt::format("optimizer.momentum.{}.", member);
}

void read_values(const std::vector<StatePiece>& pieces, const std::vector<std::span<float>>& to) {
  SORTIE_CHECK(pieces.size() == to.size(), "{} pieces to {} places", pieces.size(), to.size());
  DeviceMemory* memory = nullptr;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].memory == nullptr || to[i].empty()) continue;
    memory = pieces[i].memory;
    memory->begin_read(pieces[i].values.data(), std::as_writable_bytes(to[i]));
  }
  if (memory != nullptr) memory->finish_copies();
}

void write_values(const StatePiece& piece, std::int64_t first, std::span<const float> from) {
  const auto to = piece.values.subspan(static_cast<std::size_t>(first), from.size());
  if (from.empty()) return;
  if (piece.memory == nullptr)
    std::ranges::copy(from, to.begin());
  else
    piece.memory->write(std::as_bytes(from), to.data());
}

namespace {

/// Elements that are on their way to a device, or from it, at a time.
constexpr std::size_t kAtOnce = std::size_t{4} << 20;

/// Calls body(first, values) for parts of the piece, with room for their values on the host.
Result<> for_each_part(const StatePiece& piece,
                       const std::function<Result<>(std::size_t, std::span<float>)>& body) {
  const std::size_t all = piece.values.size(), most = std::min(all, kAtOnce);
  const auto block = piece.memory->host_block(most * sizeof(float));
  auto* const values = reinterpret_cast<float*>(block.get());
  for (std::size_t first = 0; first < all; first += most)
    SORTIE_TRY(body(first, {values, std::min(most, all - first)}));
  return {};
}

}  // namespace

Result<> fill_values(const StatePiece& piece,
                     const std::function<Result<>(std::int64_t, std::span<float>)>& make) {
  if (piece.memory == nullptr) return make(0, piece.values);
  return for_each_part(piece, [&](std::size_t first, std::span<float> values) -> Result<> {
    SORTIE_TRY(make(static_cast<std::int64_t>(first), values));
    write_values(piece, static_cast<std::int64_t>(first), values);
    return {};
  });
}

void broadcast_values(Communicator& group, const StatePiece& piece, int root) {
  if (piece.memory == nullptr) return group.broadcast(std::as_writable_bytes(piece.values), root);
  const auto sent =
      for_each_part(piece, [&](std::size_t first, std::span<float> values) -> Result<> {
        const auto bytes = std::as_writable_bytes(values);
        if (group.rank() == root) piece.memory->read(piece.values.data() + first, bytes);
        group.broadcast(bytes, root);
        if (group.rank() != root) piece.memory->write(bytes, piece.values.data() + first);
        return {};
      });
  SORTIE_CHECK(sent.has_value(), "what can not fail");
}

StateView::StateView(ParameterStore& store)
    : store_((store.await_values(), store.context().synchronize(), store)),
      open_(store.context().device()) {}

std::vector<StatePiece> StateView::pieces(TiedCopies tied) const {
  const bool own = store_.own_momentum().has_value();
  const std::array<NamedBuffer, 3> named = {
      {{"model.", values_in(store_.master())},
       {own ? momentum_prefix(store_.own_momentum()->index) : "optimizer.m.",
        values_in(store_.moment1()), true, own},
       {"optimizer.v.", values_in(store_.moment2()), true}}};
  const Device device = store_.context().device();
  DeviceMemory* const memory = memory_is_apart(device) ? &apart_memory(device) : nullptr;
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
             .memory = memory,
             .parameter = parameter.get(),
             .moment = buffer.moment,
             .repeated = part.block->repeated,
             .alone = buffer.alone || store_.keeps_share_of(*parameter)});
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

}  // namespace sortie::trainer
