// Reads a run's state on the host, for tests.
#pragma once

#include "trainer/checkpoint/weight_types.h"
#include "trainer/state/state_view.h"

namespace sortie::trainer::test {

/// The piece's values as f32, from any memory and type. The StateView that created `piece` must be
/// alive.
inline std::vector<float> values_of(const StatePiece& piece) {
  std::vector<std::byte> bytes(piece.bytes.begin(),
                               piece.memory == nullptr ? piece.bytes.end() : piece.bytes.begin());
  bytes.resize(piece.bytes.size());
  read_values({piece}, {std::span(bytes)});  // of a device
  std::vector<float> values(static_cast<std::size_t>(piece.piece.elements()));
  widen(piece.type, bytes.data(), piece.piece.elements(), values.data());
  return values;
}

/// All values of a rank, piece after piece.
inline std::vector<float> state_values(ParameterStore& store) {
  const StateView view(store);
  std::vector<float> all;
  for (const StatePiece& piece : view.pieces(TiedCopies::include)) {
    const std::vector<float> values = values_of(piece);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

}  // namespace sortie::trainer::test
