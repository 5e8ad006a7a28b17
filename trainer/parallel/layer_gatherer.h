// Full sharding (ZeRO stage 3, Rajbhandari et al. 2020): gathers the weights of a unit (a layer,
// the embedding, the head; trainer/nn/units.h) when they are used, prefetches those of the next
// unit, and sums the gradients of a unit over the replicas as soon as another unit's gradients
// begin.
//
// The order in which a model uses its units is not declared: the first step of a kind records it,
// and later steps prefetch in that order. It is the same on all replicas, and so is the order of
// collectives.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "trainer/nn/parameter_store.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// For a store that gathers units. The store calls it before values are used and before gradients
/// are written.
class LayerGatherer {
 public:
  /// Both arguments must outlive it. `replicas` has one rank per share. The context must not keep
  /// packed weights (checked): they would be copies of weights that are released.
  LayerGatherer(ParameterStore& store, Communicator& replicas);
  /// Waits for collectives in flight, unless the stack is being unwound. Ignores CommunicatorError.
  ~LayerGatherer();
  LayerGatherer(const LayerGatherer&) = delete;
  LayerGatherer& operator=(const LayerGatherer&) = delete;

  /// Call before the passes of a step. Steps with the same `training` and `micro_batches` should
  /// use units in the same order: otherwise prefetching stops for the rest of the step.
  void begin(bool training, std::int64_t micro_batches);
  /// Makes progress; cheap. Called between ops.
  void poll();
  /// Call after the passes. Work that is added to the current stream from now on sees this rank's
  /// share of the gradients, summed over replicas and micro-batches.
  void finish();

  /// Discards gathered values. Call before the own values are changed. The current stream first
  /// waits for gathers in flight, which still read the own values.
  void forget();
  /// Begins to gather the unit that the next training step uses first. Collective over the
  /// replicas.
  void gather_ahead();

  /// For tests: number of gathers, and number of uses that found the unit prefetched.
  std::int64_t gathered() const { return gathered_; }
  std::int64_t used_ahead() const { return used_ahead_; }

 private:
  using Handles = std::vector<std::unique_ptr<CollectiveHandle>>;
  using Kind = std::pair<bool, std::int64_t>;
  struct Room {
    std::optional<std::size_t> unit;    // whose values it has, or is receiving
    Handles coming;                     // gathers that no stream waits for yet
    bool ahead = false;                 // prefetched and not used yet
    std::optional<std::size_t> summed;  // unit whose gradients are being summed
    Handles leaving;
  };
  Room& room_of(std::size_t unit) { return rooms_[store_.units()[unit].room]; }
  void use(std::size_t unit);
  void gather(std::size_t unit);
  void await_values(Room& room);
  void gather_following();
  void write_gradient(std::size_t unit);
  void sum_gradients(std::size_t unit);
  /// Makes the stream wait for the sums and adds this rank's share of them to its gradients.
  void settle(Room& room);

  ParameterStore& store_;
  Communicator& replicas_;
  std::vector<Room> rooms_;
  std::optional<std::size_t> used_, written_;  // the last ones
  std::map<Kind, std::vector<std::size_t>> orders_;
  Kind kind_{false, 0};
  std::vector<std::size_t> order_;  // order of use of units since begin()
  bool follows_ = false;            // order_ so far equals that of the last step of this kind
  std::int64_t gathered_ = 0, used_ahead_ = 0;
};

}  // namespace sortie::trainer
