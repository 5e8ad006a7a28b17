// How what is trained is cut for replicas: into buckets that are communicated as one, and each of
// these into equal shares. With a sharded optimizer a rank keeps f32 masters and moments of its own
// share of every bucket alone; where everything is sharded (units.h) weights and gradients, too.
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

/// Buckets of about `bucket_elements`, each a multiple of `ranks` x 16 elements, so that a share is
/// whole cache lines; the last one may be smaller. The range must be such a multiple, too.
/// 0: a sixteenth of the range, within 262,144 and 8,000,000 elements.
std::vector<FlatRange> cut_into_buckets(FlatRange range, std::int64_t bucket_elements, int ranks);

/// Share `index` of `count`; 1: every rank keeps all.
struct ShareRule {
  int index = 0, count = 1;
  std::int64_t bucket_elements = 1;
  /// Of weights and gradients too, not of the optimizer's state alone.
  bool everything = false;
};

/// Of the parameters of one rank.
struct ShareRules {
  ShareRule dense{};
  /// Ranks that hold the same routed experts, where these are others than those that hold the same
  /// dense parameters; 0: they are the same, and `dense` is for experts too.
  int expert_ranks = 0;
  ShareRule experts{};
};

FlatRange share_of_bucket(FlatRange bucket, const ShareRule& rule);

/// The first and the last bucket, by index, that holds elements of the range; it is not empty.
struct BucketSpan {
  std::size_t first = 0, last = 0;
};
BucketSpan buckets_of(const std::vector<FlatRange>& buckets, FlatRange range);

/// A run of a parameter whose f32 values this rank updates and saves.
struct OwnRun {
  FlatRange flat;           // of all flat elements
  std::int64_t values = 0;  // where it begins in gradients and compute copies
  std::int64_t master = 0;  // in the f32 weights
  std::int64_t moment = 0;  // and in the moments; of what is not trained nothing
  std::size_t bucket = 0;   // 0 where nothing is cut
};

}  // namespace sortie::trainer
