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
  /// Cuts what is trained of the flat gradient buffer into buckets of about `bucket_elements`, each
  /// a multiple of the group's size x 16 elements (a cache line per rank): a rank's share of every
  /// bucket is the same. Borders are where they fall, also within a parameter. Of a sharded store
  /// the buckets are the store's, and each rank gets the sums of its own share alone: the rest is
  /// then of no use, and is to be zeroed before the next step. Routed experts that are apart in the
  /// store are summed over `experts`, in buckets of their own. Of a store that gathers units it
  /// does nothing (layer_gatherer.h), nor where members have momenta of their own. All arguments
  /// must outlive the reducer.
  GradientReducer(ParameterStore& store, Communicator& communicator, std::int64_t bucket_elements,
                  Communicator* experts = nullptr);

  /// Before the backward pass of the last micro-batch: from now on a bucket is reduced as soon as
  /// the gradients in it are final on their device. Buckets of a group go out in index order, on
  /// every rank the same.
  void begin();
  /// Makes progress; cheap. Called between ops.
  void poll();
  /// After the backward pass: sends what is left (parameters that had no use). What is added to the
  /// context's current stream from now on finds the sums.
  void finish();
  /// Whoever has the work of the backward pass repeated (RepeatedWork::between) is given what
  /// begins the reduction of a bucket, to be done there each time; unset, it is done at once.
  void set_between(std::function<void(std::function<void()> act)> between) {
    between_ = std::move(between);
  }
  /// Told of each bucket, in the thread that polls, once it is known to be complete: when its
  /// reduction was begun and when it was found complete. Unset: no time is taken.
  using OnReduced =
      std::function<void(std::size_t bucket, std::chrono::steady_clock::time_point begun,
                         std::chrono::steady_clock::time_point complete)>;
  void set_on_reduced(OnReduced on_reduced) { on_reduced_ = std::move(on_reduced); }
  /// Whether there is anything to reduce, with others.
  bool reduces() const { return !buckets_.empty(); }

  std::size_t bucket_count() const { return buckets_.size(); }
  /// Elements of the flat buffer: [begin, end).
  std::pair<std::int64_t, std::int64_t> bucket(std::size_t index) const {
    return {ranges_[index].begin, ranges_[index].end};
  }
  /// Buckets that are complete: those that poll() found; behind finish() all, or the stream waits
  /// for them.
  std::size_t reduced_buckets() const;
  /// Buckets that were complete before finish() had to wait, in the last step.
  std::size_t overlapped_buckets() const { return overlapped_; }

 private:
  struct Bucket {
    int parameters = 0, missing = 0;  // that lie in it, wholly or in part
    std::unique_ptr<CollectiveHandle> handle = {};
    std::chrono::steady_clock::time_point begun = {};  // where somebody is told
  };
  /// The buckets of one group of ranks, by index.
  struct Lane {
    Communicator* group;
    std::vector<std::size_t> buckets;
    std::size_t next = 0;        // first bucket not issued
    std::size_t first_open = 0;  // first bucket not known to be done
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
