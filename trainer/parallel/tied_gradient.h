// The gradient of a parameter that both the first and the last stage of a pipeline have: the sum of
// both stages' parts, bit-identical on both, so that the copies stay equal.
#pragma once

#include "trainer/nn/parameter_store.h"
#include "trainer/parallel/stage_lines.h"

namespace sortie::trainer {

class TiedGradient {
 public:
  /// `parameter` is this stage's copy; nullptr if it has none. `stages` is the group of the stages
  /// of one model, `lines` are its lines, nullptr with one stage. All arguments must outlive it.
  /// No-op if the parameter is frozen, which must be the same on both stages.
  TiedGradient(ParameterStore& store, Parameter* parameter, Communicator& stages,
               StageLines* lines);

  /// Call before the passes of a step: the gradient does not become final before add_other(), even
  /// if all uses of the parameter are done.
  void hold();
  /// Call after the last backward pass: adds the other stage's gradient, and makes the gradient
  /// final. Collective over the two stages.
  void add_other();

 private:
  /// Adds the same elements of the other stage to `gradient`, f32 [elements].
  void add_other_to(const Tensor& gradient);

  ParameterStore& store_;
  Parameter* parameter_ = nullptr;
  Communicator& stages_;
  StageLines* const lines_;
};

}  // namespace sortie::trainer
