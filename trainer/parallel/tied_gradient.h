// A parameter that the first and the last stage of a pipeline both have: its gradient is the sum of
// both stages' parts, the same bits on both, so that the copies stay equal.
#pragma once

#include "trainer/nn/parameter_store.h"
#include "trainer/parallel/stage_lines.h"

namespace sortie::trainer {

class TiedGradient {
 public:
  /// `parameter` is this stage's copy, null where there is none (or on a stage between); `stages`
  /// the group of the stages of one model, `lines` theirs, null with one stage. All outlive it.
  /// Does nothing where the parameter is frozen, which it is on both stages alike.
  TiedGradient(ParameterStore& store, Parameter* parameter, Communicator& stages,
               StageLines* lines);

  /// Before the passes of a step: the gradient is not final before add_other(), however many of its
  /// uses are done.
  void hold();
  /// After the last pass backward: gradient += the other stage's. It is final then. Collective over
  /// the two stages.
  void add_other();

 private:
  /// f32 [elements] += the same elements of the other stage.
  void add_other_to(const Tensor& gradient);

  ParameterStore& store_;
  Parameter* parameter_ = nullptr;
  Communicator& stages_;
  StageLines* const lines_;
};

}  // namespace sortie::trainer
