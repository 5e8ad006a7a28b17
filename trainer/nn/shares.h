// How trained parameters are sharded over replicas: they are cut into buckets, each of which is
// communicated in one collective, and each bucket into equal shares. With a sharded optimizer a
// rank keeps f32 masters and moments only of its own share of every bucket; if everything is
// sharded (units.h), weights and gradients too.
#pragma once

#include <cstdint>
#include <vector>

namespace sortie::trainer {

/// Elements [begin, end) of the flat buffers.
struct FlatRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t elements() const { return end - begin; }
  bool operator==(const FlatRange&) const = default;
};

inline constexpr std::int64_t kLineElements = 16;  // f32 of a cache line

/// Cuts the range into buckets of about `bucket_elements`, each a multiple of `ranks` x 16
/// elements, so that a share is whole cache lines; the last one may be smaller. The size of the
/// range must be such a multiple, too. bucket_elements = 0: a sixteenth of the range, but between
/// 262,144 and 8,000,000 elements.
std::vector<FlatRange> cut_into_buckets(FlatRange range, std::int64_t bucket_elements, int ranks);

/// Share `index` of `count`; with a count of 1 every rank keeps everything.
struct ShareRule {
  int index = 0, count = 1;
  std::int64_t bucket_elements = 1;
  /// Weights and gradients are sharded too, not only the optimizer's state.
  bool everything = false;
};

/// The shares that one rank keeps of its parameters.
struct ShareRules {
  ShareRule dense{};
  /// Number of ranks that hold the same routed experts, if these are other ranks than those that
  /// hold the same dense parameters. 0: they are the same ranks, and `dense` applies to experts
  /// too.
  int expert_ranks = 0;
  ShareRule experts{};
};

FlatRange share_of_bucket(FlatRange bucket, const ShareRule& rule);

/// The first and the last bucket, by index, that hold elements of the range, which is not empty.
struct BucketSpan {
  std::size_t first = 0, last = 0;
};
BucketSpan buckets_of(const std::vector<FlatRange>& buckets, FlatRange range);

/// A run of a parameter whose f32 values this rank updates and saves.
struct OwnRun {
  FlatRange flat;           // in the flat buffers
  std::int64_t values = 0;  // where it begins in gradients and compute copies
  std::int64_t master = 0;  // where it begins in the f32 weights
  std::int64_t moment = 0;  // where it begins in the moments; unused if it is not trained
  std::size_t bucket = 0;   // 0 if it is not sharded
};

}  // namespace sortie::trainer
