#include "runner/health/gpu_state.h"

#include <utility>

namespace sortie::runner::health {

using sortie::health::Finding;
using sortie::health::Kind;

std::vector<Finding> GpuState::look(const GpuSample& sample, double now) {
  std::vector<Finding> found;
  const auto add = [&found](Kind kind, double value = 0, int code = 0) {
    Finding finding{.kind = kind, .code = code, .source = "nvml"};
    finding.value = value;
    found.push_back(std::move(finding));
  };
  const GpuSample none;
  const GpuSample& before = last_ ? *last_ : none;

  if (sample.lost && !before.lost) add(Kind::gpu_lost);
  if (sample.recovery && *sample.recovery != sortie::health::kRecoveryNone &&
      sample.recovery != before.recovery) {
    add(Kind::recovery);
    found.back().recovery = sample.recovery;
  }
  const auto more = [](const auto& then, const auto& after) -> std::uint64_t {
    return then && after && *after > *then ? *after - *then : 0;
  };
  if (const auto count = more(before.uncorrected, sample.uncorrected))
    add(Kind::ecc, static_cast<double>(count));
  if (const auto count = more(before.corrected, sample.corrected); count >= kManyCorrected)
    add(Kind::ecc_corrected, static_cast<double>(count));
  if (sample.remap_pending.value_or(false) && !before.remap_pending.value_or(false))
    add(Kind::remap_pending);
  if (sample.remap_failed.value_or(false) && !before.remap_failed.value_or(false))
    add(Kind::remap_failed);
  if (before.links && sample.links)
    for (int link = 0; link < 32; ++link)
      if ((*before.links >> link & 1) && !(*sample.links >> link & 1))
        add(Kind::nvlink_down, 0, link);

  if (!sample.throttle || !(*sample.throttle & kBadThrottle)) {
    throttled_since_.reset();
    throttle_told_ = false;
  } else {
    if (!throttled_since_) throttled_since_ = now;
    if (now - *throttled_since_ >= kThrottleSeconds && !std::exchange(throttle_told_, true))
      add(Kind::throttle, now - *throttled_since_);
  }

  // A sample of a lost GPU has no values, so keep the last known ones for later comparisons.
  GpuSample kept = sample;
  const auto keep = [](auto& value, const auto& old) {
    if (!value) value = old;
  };
  keep(kept.recovery, before.recovery);
  keep(kept.uncorrected, before.uncorrected);
  keep(kept.corrected, before.corrected);
  keep(kept.remap_pending, before.remap_pending);
  keep(kept.remap_failed, before.remap_failed);
  keep(kept.links, before.links);
  last_ = kept;
  return found;
}

}  // namespace sortie::runner::health
