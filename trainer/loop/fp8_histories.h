// The state of delayed scaling in FP8: the largest values of the last steps, in the parameter
// store. All ranks that have a part of a layer know the same ones.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/nn/parameter_store.h"
#include "trainer/parallel/layout.h"
#include "trainer/state/extra_pieces.h"

namespace sortie::trainer {

class Fp8Histories {
 public:
  /// Both outlive it. Of a store without delayed scaling nothing happens.
  Fp8Histories(const Layout& layout, ParameterStore& store) : layout_(layout), store_(store) {}

  /// Whether there are any; after finalize().
  bool kept() const { return store_.fp8_history().defined(); }
  std::int64_t elements() const { return store_.fp8_history().elements(); }

  /// The end of a step's passes: what was noted in them enters the histories. Collective.
  void roll(ExecutionContext& context);
  /// What was noted since then is dropped.
  void forget(ExecutionContext& context);

  /// As checkpoints have it: "fp8.amax.<parameter>" f32 [3, ops::kFp8History] of x, weight and
  /// gradient. To save: of one of the ranks that know the same. To load: empty histories, which
  /// stay so where the checkpoint has none.
  std::vector<ExtraPiece> pieces_to_save();
  std::vector<ExtraPiece> pieces_to_load();
  /// After a load: brings them to the device, and to ranks that did not read. Collective.
  void loaded(ExecutionContext& context);

 private:
  /// On every rank that has a part of a layer the largest numbers of all of them.
  void join(ExecutionContext& context, const Tensor& values);
  std::vector<ExtraPiece> pieces(std::vector<float>& values);

  const Layout& layout_;
  ParameterStore& store_;
  std::vector<float> saved_, read_;  // what pieces refer to
};

}  // namespace sortie::trainer
