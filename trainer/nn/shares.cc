#include "trainer/nn/shares.h"

#include <algorithm>

#include "common/base/check.h"

namespace sortie::trainer {
namespace {

// Enough buckets that most of them are communicated while the backward pass still computes the
// others. Fewer if a bucket would be so small (1 MiB) that the link's latency dominates; more if it
// would be so large that its gradients wait for long.
constexpr std::int64_t kBuckets = 16, kSmallest = 1 << 18, kLargest = 8'000'000;

std::int64_t fitting_bucket(std::int64_t elements) {
  return std::clamp((elements + kBuckets - 1) / kBuckets, kSmallest, kLargest);
}

}  // namespace

std::vector<FlatRange> cut_into_buckets(FlatRange range, std::int64_t bucket_elements, int ranks) {
  const std::int64_t least = ranks * kLineElements;
  SORTIE_CHECK(range.elements() % least == 0, "{} elements on {} ranks", range.elements(), ranks);
  if (bucket_elements == 0) bucket_elements = fitting_bucket(range.elements());
  const std::int64_t unit =
      std::max<std::int64_t>((bucket_elements + least - 1) / least, 1) * least;
  std::vector<FlatRange> buckets;
  for (std::int64_t begin = range.begin; begin < range.end; begin += unit)
    buckets.push_back({begin, std::min(begin + unit, range.end)});
  return buckets;
}

FlatRange share_of_bucket(FlatRange bucket, const ShareRule& rule) {
  const std::int64_t each = bucket.elements() / rule.count;
  return {bucket.begin + each * rule.index, bucket.begin + each * (rule.index + 1)};
}

BucketSpan buckets_of(const std::vector<FlatRange>& buckets, FlatRange range) {
  const auto holds = [&](std::int64_t element) {
    const auto next = std::ranges::upper_bound(buckets, element, {}, &FlatRange::begin);
    return static_cast<std::size_t>(next - buckets.begin()) - 1;
  };
  SORTIE_CHECK(!buckets.empty() && range.elements() > 0 && range.begin >= buckets.front().begin &&
                   range.end <= buckets.back().end,
               "elements {} to {} are in no bucket", range.begin, range.end);
  return {holds(range.begin), holds(range.end - 1)};
}

}  // namespace sortie::trainer
