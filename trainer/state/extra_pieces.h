// ExtraPiece: a part of a tensor that a checkpoint has in addition to weights and moments, saved by
// the only rank that has it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trainer/checkpoint/piece.h"

namespace sortie::trainer {

struct ExtraPiece {
  std::string name;  // with its own prefix, "outer.momentum."
  Dims shape;        // of the whole tensor
  Piece piece;       // the part of it
  std::span<float> values;
};

}  // namespace sortie::trainer
