#include "launcher/watchdog/stragglers.h"

#include <algorithm>

namespace sortie::launcher {
namespace {

/// Smaller differences do not matter, and are mostly errors of the clock.
constexpr double kLeastDifferenceUs = 1000;

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

std::vector<Straggler> Stragglers::window(std::span<const std::uint32_t> own_us) {
  std::vector<double> known;
  for (const std::uint32_t own : own_us)
    if (own > 0) known.push_back(own);
  std::vector<Straggler> found;
  if (ratio_ <= 0 || known.size() < kLeastHosts) {
    std::ranges::fill(slow_for_, 0);
    return found;
  }
  const double median = median_of(known);
  for (std::size_t host = 0; host < own_us.size(); ++host) {
    const double own = own_us[host];
    const bool slow = own > ratio_ * median && own - median >= kLeastDifferenceUs;
    slow_for_[host] = slow ? slow_for_[host] + 1 : 0;
    if (slow_for_[host] < windows_ || named_[host]) continue;
    named_[host] = true;
    found.push_back({host, own / 1000, median / 1000});
  }
  return found;
}

}  // namespace sortie::launcher
