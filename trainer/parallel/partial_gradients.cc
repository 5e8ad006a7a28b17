#include "trainer/parallel/partial_gradients.h"

#include <vector>

#include "trainer/ops/copy.h"

namespace sortie::trainer {
namespace {

/// A part of a gradient, and where it is added up with those of the other ranks.
struct Share {
  Tensor gradient;
  std::int64_t place = 0;  // in the packed sums
};

class Shares {
 public:
  Shares(ParameterStore& store, const TensorGroup& group) : group_(group) {
    for (const auto& parameter : store.parameters())
      if (parameter->trained()) add(*parameter);
  }

  std::vector<Share> shares;
  std::int64_t elements = 0;  // of the sums

 private:
  void add(Parameter& parameter) {
    const CutRule& cut = parameter.spec().cut;
    const Tensor flat = parameter.grad().view({parameter.elements()});
    if (!cut.axis) {
      if (cut.partial_always || (cut.partial_gradient && group_.sequence)) {
        shares.push_back({flat, elements});
        elements += flat.elements();
      }
      return;
    }
    if (*cut.axis == 0 && cut.group == ReduceGroup::dense) add_runs(parameter, flat);
  }

  /// Each rank's unit goes to its own place, where others that do not have it add zero.
  void add_runs(const Parameter& parameter, const Tensor& flat) {
    const ParameterSpec& spec = parameter.spec();
    const std::int64_t columns = spec.shape.dims() == 2 ? spec.shape[1] : 1;
    std::int64_t at = 0, first = 0;
    for (std::size_t i = 0; i < spec.segments.size(); ++i) {
      const Segment& segment = spec.segments[i];
      const GlobalBlock& block = parameter.blocks()[i];
      if (in_runs(segment, group_.size())) {
        shares.push_back(
            {flat.slice(0, at, block.elements()), elements + (block.row - first) * columns});
        elements += segment.rows * columns;
      }
      at += block.elements();
      first += segment.rows;
    }
  }

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
