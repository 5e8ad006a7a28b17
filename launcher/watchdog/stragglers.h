// Hosts whose own work takes longer than that of the others, window after window. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sortie::launcher {

struct Straggler {
  std::size_t host = 0;
  double own_ms = 0, median_ms = 0;  // per step, of the last window
  double ratio() const { return own_ms / median_ms; }
};

class Stragglers {
 public:
  /// With fewer hosts nobody knows which of them is the slow one.
  static constexpr std::size_t kLeastHosts = 3;

  /// `ratio`: of the median; 0 = none is looked for. `windows`: in a row.
  Stragglers(std::size_t hosts, double ratio, std::int64_t windows)
      : ratio_(ratio), windows_(windows), slow_for_(hosts), named_(hosts) {}

  /// A window has ended. `own_us`: of each host, the own work of its slowest rank per step; 0 = not
  /// known. Returns hosts that have now been too slow for long enough, each once.
  std::vector<Straggler> window(std::span<const std::uint32_t> own_us);

 private:
  const double ratio_;
  const std::int64_t windows_;
  std::vector<std::int64_t> slow_for_;
  std::vector<bool> named_;
};

}  // namespace sortie::launcher
