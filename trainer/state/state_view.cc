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
  const Tensor& flat;
  bool moment = false;  // only trained parameters have it
  bool alone = false;
};

StorageType storage_of(DType dtype) {
  SORTIE_CHECK(dtype == DType::f32 || dtype == DType::bf16, "state in {}", dtype_name(dtype));
  return dtype == DType::f32 ? StorageType::f32 : StorageType::bf16;
}

/// Returns the bytes of `count` elements of a buffer, from `first` on.
std::span<std::byte> bytes_in(const Tensor& flat, std::int64_t first, std::int64_t count) {
  const std::size_t size = dtype_bytes(flat.dtype());
  return {static_cast<std::byte*>(flat.raw()) + static_cast<std::size_t>(first) * size,
          static_cast<std::size_t>(count) * size};
}

/// Returns the piece of a block; Piece::whole() if it is the whole parameter, of any shape, so that
/// the tensor is stored under its plain name.
Piece piece_of(const Parameter& parameter, const GlobalBlock& block, const Dims& shape) {
  if (block.elements() == parameter.spec().shape.elements()) return Piece::whole(shape);
  if (shape.size() == 1) return Piece::box({block.row}, {block.rows});
  return Piece::box({block.row, block.column}, {block.rows, block.columns});
}

}  // namespace

std::string momentum_prefix(int member) {
  return fmt::format("optimizer.momentum.{}.", member);
}

std::span<float> floats_in(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

void read_values(const std::vector<StatePiece>& pieces,
                 const std::vector<std::span<std::byte>>& to) {
  SORTIE_CHECK(pieces.size() == to.size(), "{} pieces to {} places", pieces.size(), to.size());
  DeviceMemory* memory = nullptr;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].memory == nullptr || to[i].empty()) continue;
    memory = pieces[i].memory;
    memory->begin_read(pieces[i].bytes.data(), to[i]);
  }
  if (memory != nullptr) memory->finish_copies();
}

void write_values(const StatePiece& piece, std::int64_t first, std::span<const std::byte> from) {
  const auto to =
      piece.bytes.subspan(static_cast<std::size_t>(first) * piece.element_bytes(), from.size());
  if (from.empty()) return;
  if (piece.memory == nullptr)
    std::ranges::copy(from, to.begin());
  else
    piece.memory->write(from, to.data());
}

namespace {

/// Bytes of one transfer to or from a device.
constexpr std::size_t kAtOnce = std::size_t{16} << 20;

/// Calls body(first, bytes) for parts of the bytes of a piece in device memory; `bytes` is a buffer
/// on the host for them.
Result<> for_each_part(const StatePiece& piece,
                       const std::function<Result<>(std::size_t, std::span<std::byte>)>& body) {
  const std::size_t all = piece.bytes.size(), most = std::min(all, kAtOnce);
  const auto block = piece.memory->host_block(most);
  for (std::size_t first = 0; first < all; first += most)
    SORTIE_TRY(body(first, {block.get(), std::min(most, all - first)}));
  return {};
}

}  // namespace

Result<> fill_values(const StatePiece& piece,
                     const std::function<Result<>(const Piece&, std::span<std::byte>)>& make) {
  if (piece.memory == nullptr) return make(piece.piece, piece.bytes);
  return for_each_part(piece, [&](std::size_t at, std::span<std::byte> bytes) -> Result<> {
    const auto first = static_cast<std::int64_t>(at / piece.element_bytes());
    Piece part = piece.piece;
    part.begin += first;
    part.end = part.begin + static_cast<std::int64_t>(bytes.size() / piece.element_bytes());
    SORTIE_TRY(make(part, bytes));
    write_values(piece, first, bytes);
    return {};
  });
}

void broadcast_values(Communicator& group, const StatePiece& piece, int root) {
  if (piece.memory == nullptr) return group.broadcast(piece.bytes, root);
  const auto sent =
      for_each_part(piece, [&](std::size_t at, std::span<std::byte> bytes) -> Result<> {
        if (group.rank() == root) piece.memory->read(piece.bytes.data() + at, bytes);
        group.broadcast(bytes, root);
        if (group.rank() != root) piece.memory->write(bytes, piece.bytes.data() + at);
        return {};
      });
  SORTIE_CHECK(sent.has_value(), "what can not fail");
}

namespace {

Tensor wrap_bytes(std::span<std::byte> bytes) {
  return Tensor::wrap(bytes.data(), DType::u8, {static_cast<std::int64_t>(bytes.size())});
}

/// Calls body(first, bytes) for parts of the same sizes in any memory: `bytes` are the values
/// themselves or a buffer for them.
void for_each_message(const StatePiece& piece,
                      const std::function<void(std::size_t, std::span<std::byte>)>& body) {
  if (piece.memory == nullptr) {
    for (std::size_t first = 0; first < piece.bytes.size(); first += kAtOnce)
      body(first, piece.bytes.subspan(first, std::min(kAtOnce, piece.bytes.size() - first)));
    return;
  }
  const auto done = for_each_part(piece, [&](std::size_t first, std::span<std::byte> bytes) {
    body(first, bytes);
    return Result<>();
  });
  SORTIE_CHECK(done.has_value(), "what can not fail");
}

}  // namespace

void send_values(Communicator& group, const StatePiece& piece, int to) {
  for_each_message(piece, [&](std::size_t first, std::span<std::byte> bytes) {
    if (piece.memory != nullptr) piece.memory->read(piece.bytes.data() + first, bytes);
    group.send(wrap_bytes(bytes), to);
  });
}

void receive_values(Communicator& group, const StatePiece& piece, int from) {
  for_each_message(piece, [&](std::size_t first, std::span<std::byte> bytes) {
    group.receive(wrap_bytes(bytes), from);
    if (piece.memory != nullptr) piece.memory->write(bytes, piece.bytes.data() + first);
  });
}

StateView::StateView(ParameterStore& store)
    : store_((store.await_values(), store.context().synchronize(), store)),
      open_(store.context().device()) {}

std::vector<StatePiece> StateView::pieces(TiedCopies tied) const {
  const bool own = store_.own_momentum().has_value();
  const std::array<NamedBuffer, 3> named = {
      {{"model.", store_.master()},
       {own ? momentum_prefix(store_.own_momentum()->index) : "optimizer.m.", store_.moment1(),
        true, own},
       {"optimizer.v.", store_.moment2(), true}}};
  const Device device = store_.context().device();
  DeviceMemory* const memory = memory_is_apart(device) ? &apart_memory(device) : nullptr;
  std::vector<StatePiece> pieces;
  for (const NamedBuffer& buffer : named) {
    if (!buffer.flat.defined()) continue;  // without an optimizer
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
        pieces.push_back({.name = buffer.prefix + (spec.tied_to.empty() ? spec.name : spec.tied_to),
                          .shape = shape,
                          .piece = std::move(piece),
                          .type = storage_of(buffer.flat.dtype()),
                          .bytes = bytes_in(buffer.flat, at, part.run.flat.elements()),
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

std::uint64_t bytes_of(const std::vector<StatePiece>& pieces) {
  std::uint64_t sum = 0;
  for (const StatePiece& piece : pieces) sum += piece.bytes.size();
  return sum;
}

std::vector<StatePiece> share_of(const std::vector<StatePiece>& pieces, std::size_t index,
                                 std::size_t count) {
  SORTIE_CHECK(index < count, "share {} of {}", index, count);
  const auto border = [total = bytes_of(pieces), n = static_cast<std::uint64_t>(count)](
                          std::size_t i) { return total / n * i + std::min(i, total % n); };
  const std::size_t begin = border(index), end = border(index + 1);
  std::vector<StatePiece> share;
  std::size_t first = 0;  // of the piece, among all bytes
  for (const StatePiece& piece : pieces) {
    // A border within an element is moved to the element's start.
    const std::size_t size = piece.element_bytes();
    const auto place = [&](std::size_t at) {
      return at <= first ? 0 : std::min((at - first) / size * size, piece.bytes.size());
    };
    const std::size_t from = place(begin), to = place(end);
    if (from < to) {
      StatePiece& part = share.emplace_back(piece);
      part.piece.end = part.piece.begin + static_cast<std::int64_t>(to / size);
      part.piece.begin += static_cast<std::int64_t>(from / size);
      part.bytes = piece.bytes.subspan(from, to - from);
    }
    first += piece.bytes.size();
  }
  return share;
}

}  // namespace sortie::trainer
