// The state of delayed scaling in FP8: the largest values of the last steps, in the parameter
// store. All ranks that hold a part of a layer have the same ones.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/nn/parameter_store.h"
#include "trainer/parallel/layout.h"
#include "trainer/state/extra_pieces.h"

namespace sortie::trainer {

class Fp8Histories {
 public:
  /// Both arguments must outlive it. No-op for a store without delayed scaling.
  Fp8Histories(const Layout& layout, ParameterStore& store) : layout_(layout), store_(store) {}

  /// Whether the store has histories; after finalize().
  bool kept() const { return store_.fp8_history().defined(); }
  std::int64_t elements() const { return store_.fp8_history().elements(); }

  /// Call after the passes of a step: adds the values that they recorded to the histories.
  /// Collective.
  void roll(ExecutionContext& context);
  /// Drops the values that were recorded since roll().
  void forget(ExecutionContext& context);

  /// Pieces of a checkpoint: "fp8.amax.<parameter>", f32 [3, ops::kFp8History] of x, weight and
  /// gradient. To save: empty except on one of the ranks with the same values. To load: zeroed
  /// histories, which stay so if the checkpoint has none.
  std::vector<ExtraPiece> pieces_to_save();
  std::vector<ExtraPiece> pieces_to_load();
  /// Call after a load: copies the histories to the device, and to ranks that did not read them.
  /// Collective.
  void loaded(ExecutionContext& context);

 private:
  /// Replaces `values` by their maximum over all ranks that hold a part of a layer. Collective.
  void join(ExecutionContext& context, const Tensor& values);
  std::vector<ExtraPiece> pieces(std::vector<float>& values);

  const Layout& layout_;
  ParameterStore& store_;
  std::vector<float> saved_, read_;  // memory of the pieces
};

}  // namespace sortie::trainer
