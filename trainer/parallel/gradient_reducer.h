// Sums gradients over the data-parallel ranks in buckets, while the backward pass still runs.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "trainer/nn/parameter_store.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

class GradientReducer {
 public:
  /// Divides the trained part of the flat gradient buffer into buckets of about `bucket_elements`.
  /// Each is a multiple of the group's size x 16 elements (a cache line per rank), so that all
  /// ranks have equal shares of a bucket. A boundary may be within a parameter.
  ///
  /// With a sharded store, the buckets are those of the store, and each rank gets only the sums of
  /// its own share. The rest of the gradients is then meaningless and must be zeroed before the
  /// next step. Routed experts in a separate section of the store are summed over `experts`, in
  /// separate buckets. No-op with a store that gathers units (layer_gatherer.h) or has
  /// own_momentum(). All arguments must outlive the reducer.
  GradientReducer(ParameterStore& store, Communicator& communicator, std::int64_t bucket_elements,
                  Communicator* experts = nullptr);

  /// Call before the backward pass of the last micro-batch: from then on a bucket is reduced as
  /// soon as its gradients are final on their device. The buckets of a group are issued in index
  /// order on every rank.
  void begin();
  /// Makes progress; cheap. Called between ops.
  void poll();
  /// Call after the backward pass: issues the remaining buckets (of parameters that were not used).
  /// Work that is added to the context's current stream from now on sees the sums.
  void finish();
  /// Sets a function that receives each action that begins the reduction of a bucket, so that a
  /// repeated backward pass performs it at this point every time (RepeatedWork::between). If unset,
  /// the action is performed at once.
  void set_between(std::function<void(std::function<void()> act)> between) {
    between_ = std::move(between);
  }
  /// Called on the polling thread for each bucket that is found complete, or for which finish() has
  /// made the stream wait: with the times at which its reduction began and now. If unset, no times
  /// are taken.
  using OnReduced =
      std::function<void(std::size_t bucket, std::chrono::steady_clock::time_point begun,
                         std::chrono::steady_clock::time_point complete)>;
  void set_on_reduced(OnReduced on_reduced) { on_reduced_ = std::move(on_reduced); }
  /// Whether any bucket is reduced with other ranks.
  bool reduces() const { return !buckets_.empty(); }

  /// For tests.
  std::size_t bucket_count() const { return buckets_.size(); }
  /// Elements [begin, end) of the flat buffer.
  std::pair<std::int64_t, std::int64_t> bucket(std::size_t index) const {
    return {ranges_[index].begin, ranges_[index].end};
  }
  /// Buckets that poll() has found complete; after finish() all of them, some of which the stream
  /// may still wait for.
  std::size_t reduced_buckets() const;
  /// Buckets that were complete before finish() had to wait, in the last step. For tests.
  std::size_t overlapped_buckets() const { return overlapped_; }

 private:
  struct Bucket {
    int parameters = 0, missing = 0;  // that overlap it, and of these not final yet
    std::unique_ptr<CollectiveHandle> handle = {};
    std::chrono::steady_clock::time_point begun = {};  // set only with on_reduced_
  };
  /// The buckets that one group of ranks reduces, by index.
  struct Lane {
    Communicator* group;
    std::vector<std::size_t> buckets;
    std::size_t next = 0;        // first bucket not issued
    std::size_t first_open = 0;  // first bucket not known to be complete
  };
  void add_lane(ReduceGroup reduced, Communicator& group);
  BucketSpan span_of(const Parameter& parameter) const;
  void issue_ready();
  void issue(Communicator& group, std::size_t index);
  void completed(std::size_t index);

  ParameterStore& store_;
  std::vector<FlatRange> ranges_;
  std::vector<Bucket> buckets_;
  std::vector<Lane> lanes_;
  std::size_t overlapped_ = 0;
  bool polling_ = false;
  std::function<void(std::function<void()>)> between_;
  OnReduced on_reduced_;
};

}  // namespace sortie::trainer
