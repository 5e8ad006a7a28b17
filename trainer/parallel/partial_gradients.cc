#include "trainer/parallel/partial_gradients.h"

#include <vector>

#include "trainer/ops/copy.h"

namespace sortie::trainer {
namespace {

/// A part of a gradient, to be summed with those of the other ranks.
struct Share {
  Tensor gradient;
  std::int64_t place = 0;  // in the packed sums
};

class Shares {
 public:
  Shares(ParameterStore& store, const TensorGroup& group) : store_(store), group_(group) {
    for (const auto& parameter : store.parameters())
      if (parameter->trained()) add(*parameter);
  }

  std::vector<Share> shares;
  std::int64_t elements = 0;  // of the sums

 private:
  void add(const Parameter& parameter) {
    const CutRule& cut = parameter.spec().cut;
    if (cut.axis == 0) {
      if (cut.group == ReduceGroup::dense) add_runs(parameter);
      return;
    }
    if (cut.axis || !(cut.partial_always || (cut.partial_gradient && group_.sequence))) return;
    for (const OwnRun& run : parameter.own_runs()) {
      shares.push_back({store_.gradients_of(run), elements});
      elements += run.flat.elements();
    }
  }

  /// Each unit has a separate place in the sums, where ranks that do not have the unit add zero. A
  /// rank has equally many elements of every unit, however its store is sharded.
  void add_runs(const Parameter& parameter) {
    const ParameterSpec& spec = parameter.spec();
    const std::vector<OwnPart> parts = parameter.own_parts();
    std::int64_t first = 0;
    for (std::size_t i = 0; i < spec.segments.size(); ++i) {
      const Segment& segment = spec.segments[i];
      const GlobalBlock& block = parameter.blocks()[i];
      for (const OwnPart& part : parts) {
        if (part.block != &block || !in_runs(segment, group_.size())) continue;
        const std::int64_t count = part.run.flat.elements();
        shares.push_back(
            {store_.gradients_of(part.run), elements + (block.row - first) / segment.unit * count});
        elements += segment.rows / segment.unit * count;
      }
      first += segment.rows;
    }
  }

  ParameterStore& store_;
  const TensorGroup& group_;
};

}  // namespace

void sum_partial_gradients(ParameterStore& store, const TensorGroup* group) {
  if (group == nullptr) return;
  const Shares all(store, *group);
  if (all.elements == 0) return;
  ExecutionContext& context = store.context();
  const Tensor sums = context.zeros(DType::f32, {all.elements});
  for (const Share& share : all.shares) {
    Tensor to = sums.slice(0, share.place, share.gradient.elements());
    ops::copy(context, share.gradient, to);
  }
  group->communicator.all_reduce_async(sums, ReduceOp::sum, context.record())->wait_on(context);
  for (const Share& share : all.shares) {
    Tensor to = share.gradient;
    ops::copy(context, sums.slice(0, share.place, to.elements()), to);
  }
}

}  // namespace sortie::trainer
