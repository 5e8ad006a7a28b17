// What NVML says about one GPU at one time, and what follows from two such looks. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/health/finding.h"

namespace sortie::runner::health {

/// What the GPU or its driver does not know is empty.
struct GpuSample {
  bool lost = false;
  std::optional<int> recovery;
  std::optional<std::uint64_t> throttle;     // bits of NVML's reasons
  std::optional<std::uint64_t> uncorrected;  // memory errors since the driver was loaded
  std::optional<std::uint64_t> corrected;
  std::optional<bool> remap_pending, remap_failed;
  std::optional<std::uint32_t> links;  // bit N: NVLink N is active
};

/// The reasons for lower clocks that say that something is wrong: slowed down by the hardware, by
/// heat, by the power supply. A GPU at its power limit is as it should be.
inline constexpr std::uint64_t kBadThrottle = 0x08 | 0x20 | 0x40 | 0x80;
/// How long one must last, and how many corrected errors from one look to the next are many.
inline constexpr double kThrottleSeconds = 60;
inline constexpr std::uint64_t kManyCorrected = 100;

class GpuState {
 public:
  /// Takes the next look; the first one is what later ones are compared with, and what is wrong
  /// already is found in it. `now` in seconds.
  std::vector<sortie::health::Finding> look(const GpuSample& sample, double now);
  bool lost() const { return last_ && last_->lost; }

 private:
  std::optional<GpuSample> last_;
  std::optional<double> throttled_since_;
  bool throttle_told_ = false;
};

}  // namespace sortie::runner::health
