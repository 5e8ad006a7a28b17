// ExtraPiece: a part of a tensor that a checkpoint of a run has beside its weights and moments, by
// the rank that has it alone.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trainer/checkpoint/piece.h"

namespace sortie::trainer {

struct ExtraPiece {
  std::string name;  // with a prefix of its own, "outer.momentum."
  Dims shape;        // of the whole tensor
  Piece piece;       // of it
  std::span<float> values;
};

}  // namespace sortie::trainer
