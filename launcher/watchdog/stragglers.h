// Detects hosts whose own work takes longer than that of the others in several consecutive windows.
// Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sortie::launcher {

struct Straggler {
  std::size_t host = 0;
  double own_ms = 0, median_ms = 0;  // per step, in the last window
  double ratio() const { return own_ms / median_ms; }
};

class Stragglers {
 public:
  /// With fewer hosts it is unknown which of them is slow.
  static constexpr std::size_t kLeastHosts = 3;

  /// `ratio`: a host is slow above `ratio` times the median; 0 = off. `windows`: number of
  /// consecutive slow windows before a host is reported.
  Stragglers(std::size_t hosts, double ratio, std::int64_t windows)
      : ratio_(ratio), windows_(windows), slow_for_(hosts), named_(hosts) {}

  /// Evaluates a window. `own_us`: by host, the own work per step of its slowest rank; 0 = unknown.
  /// Returns the hosts that have now been slow for long enough. Each host is reported once.
  std::vector<Straggler> window(std::span<const std::uint32_t> own_us);

 private:
  const double ratio_;
  const std::int64_t windows_;
  std::vector<std::int64_t> slow_for_;
  std::vector<bool> named_;
};

}  // namespace sortie::launcher
