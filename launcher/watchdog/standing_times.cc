#include "launcher/watchdog/standing_times.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sortie::launcher {
namespace {

using std::chrono::milliseconds;
constexpr double kGrowth = 1.1;

}  // namespace

void TimeHistogram::add(milliseconds time) {
  const double ms = std::max(1.0, static_cast<double>(time.count()));
  const auto bucket = static_cast<std::size_t>(std::ceil(std::log(ms) / std::log(kGrowth)));
  std::uint32_t& entry = buckets_[std::min(bucket, kBuckets - 1)];
  if (entry < std::numeric_limits<std::uint32_t>::max()) {
    ++entry;
    ++count_;
  }
}

milliseconds TimeHistogram::p99() const {
  if (count_ == 0) return milliseconds(0);
  const std::uint64_t above = count_ / 100;  // number of times that may be longer
  std::uint64_t seen = 0;
  for (std::size_t i = kBuckets; i-- > 0;) {
    seen += buckets_[i];
    if (seen > above)
      return milliseconds(
          static_cast<std::int64_t>(std::ceil(std::pow(kGrowth, static_cast<double>(i)))));
  }
  return milliseconds(0);
}

void StandingTimes::add(training::Section section, milliseconds time) {
  sections_[static_cast<std::size_t>(section)].add(time);
  all_.add(time);
}

milliseconds StandingTimes::p99(training::Section section) const {
  const TimeHistogram& own = sections_[static_cast<std::size_t>(section)];
  if (own.count() >= kEnough) return own.p99();
  return all_.count() >= kEnough ? all_.p99() : milliseconds(0);
}

}  // namespace sortie::launcher
