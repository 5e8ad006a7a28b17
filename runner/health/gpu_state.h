// The state of one GPU as NVML reports it at one time, and the findings from two such samples.
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/health/finding.h"

namespace sortie::runner::health {

/// Values that the GPU or its driver does not provide are nullopt.
struct GpuSample {
  bool lost = false;
  std::optional<int> recovery;
  std::optional<std::uint64_t> throttle;     // bit mask of NVML's clock event reasons
  std::optional<std::uint64_t> uncorrected;  // memory errors since the driver was loaded
  std::optional<std::uint64_t> corrected;
  std::optional<bool> remap_pending, remap_failed;
  std::optional<std::uint32_t> links;  // bit N: NVLink N is active
};

/// Reasons for reduced clocks that indicate a fault: slowdown by hardware, heat or the power
/// supply. Running at the power limit is normal.
inline constexpr std::uint64_t kBadThrottle = 0x08 | 0x20 | 0x40 | 0x80;
/// Minimum duration of a throttle finding, and the minimum increase of corrected errors between two
/// samples that is reported.
inline constexpr double kThrottleSeconds = 60;
inline constexpr std::uint64_t kManyCorrected = 100;

class GpuState {
 public:
  /// Takes the next sample and returns what it reveals. Later samples are compared with it; the
  /// first one reports faults that exist already. `now` in seconds.
  std::vector<sortie::health::Finding> look(const GpuSample& sample, double now);
  bool lost() const { return last_ && last_->lost; }

 private:
  std::optional<GpuSample> last_;
  std::optional<double> throttled_since_;
  bool throttle_told_ = false;
};

}  // namespace sortie::runner::health
