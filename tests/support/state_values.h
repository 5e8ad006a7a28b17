// A piece of a run's state on the host, for tests.
#pragma once

#include "trainer/state/state_view.h"

namespace sortie::trainer::test {

/// Its values, wherever they lie; the StateView that gave it lives.
inline std::vector<float> values_of(const StatePiece& piece) {
  if (piece.memory == nullptr) return {piece.values.begin(), piece.values.end()};
  std::vector<float> values(piece.values.size());
  read_values({piece}, {std::span(values)});
  return values;
}

}  // namespace sortie::trainer::test
