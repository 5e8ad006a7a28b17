// Full sharding (ZeRO stage 3, Rajbhandari et al. 2020): brings the weights of a unit (a layer, the
// embedding, the head; trainer/nn/units.h) when they are used, those of the next one ahead, and
// sums its gradients over the replicas as soon as another unit's begin.
//
// Nothing says which unit a model uses next: the first step of a kind shows it, and later ones
// gather ahead by that order. It is the same on all replicas, and so is the order of collectives.
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

/// Of a store that gathers, which asks it before values are used and gradients written.
class LayerGatherer {
 public:
  /// Both must outlive it. The communicator is that of the replicas, one per share. The context
  /// keeps no packed weights (checked): they would be copies of what is let go.
  LayerGatherer(ParameterStore& store, Communicator& replicas);
  /// Waits for what is on its way, unless a collective of this rank has failed.
  ~LayerGatherer();
  LayerGatherer(const LayerGatherer&) = delete;
  LayerGatherer& operator=(const LayerGatherer&) = delete;

  /// Before the passes of a step. Steps of the same kind and number of micro-batches use units in
  /// the same order.
  void begin(bool training, std::int64_t micro_batches);
  /// Makes progress; cheap. Called between ops.
  void poll();
  /// After the passes: what the current stream is given from now on finds this rank's share of the
  /// gradients, summed over replicas and added up over micro-batches.
  void finish();

  /// What was gathered is out of date: call it before own values are changed. The stream then
  /// changes them behind what still reads them.
  void forget();
  /// Begins to gather what the next step of training will use first. Collective over the replicas.
  void gather_ahead();

  /// How often a unit was gathered, and how often it was used having been on its way before.
  std::int64_t gathered() const { return gathered_; }
  std::int64_t used_ahead() const { return used_ahead_; }

 private:
  using Handles = std::vector<std::unique_ptr<CollectiveHandle>>;
  using Kind = std::pair<bool, std::int64_t>;
  struct Room {
    std::optional<std::size_t> unit;    // whose values are there, or on their way
    Handles coming;                     // that no stream has been told to wait for
    bool ahead = false;                 // gathered before its first use, which is to come
    std::optional<std::size_t> summed;  // the unit whose gradients are being summed
    Handles leaving;
  };
  Room& room_of(std::size_t unit) { return rooms_[store_.units()[unit].room]; }
  void use(std::size_t unit);
  void gather(std::size_t unit);
  void await_values(Room& room);
  void gather_following();
  void write_gradient(std::size_t unit);
  void sum_gradients(std::size_t unit);
  /// The sums are in: adds this rank's share of them to its gradients.
  void settle(Room& room);

  ParameterStore& store_;
  Communicator& replicas_;
  std::vector<Room> rooms_;
  std::optional<std::size_t> used_, written_;  // last
  std::map<Kind, std::vector<std::size_t>> orders_;
  Kind kind_{false, 0};
  std::vector<std::size_t> order_;  // in which units have been used since begin()
  bool follows_ = false;            // it is that of the last step of this kind, so far
  std::int64_t gathered_ = 0, used_ahead_ = 0;
};

}  // namespace sortie::trainer
