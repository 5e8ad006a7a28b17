// Network links of this host: those of adapters (Ethernet, InfiniBand), not of bridges, tunnels and
// containers, which come and go with what uses them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/health/finding.h"

namespace sortie::runner::health {

/// Down for so long counts as down; less is a moment.
inline constexpr double kDownSeconds = 5;
/// So many times within so long is a link that flaps.
inline constexpr std::uint64_t kFlaps = 3;
inline constexpr double kFlapSeconds = 300;

/// What one link looks like at one time.
struct LinkLook {
  bool up = false;
  std::uint64_t downs = 0;  // so often it went down since its driver was loaded; only rises
};

/// One link over time. Pure.
class LinkState {
 public:
  std::vector<sortie::health::Finding> look(const LinkLook& look, double now);

 private:
  std::optional<LinkLook> last_;
  bool was_up_ = false;  // ever: a port without a cable is no fault
  std::optional<double> down_since_;
  bool down_told_ = false;
  std::deque<double> downs_;  // when, within kFlapSeconds
};

class Links {
 public:
  /// `root` is put before /sys, for tests.
  explicit Links(std::string root) : root_(std::move(root)) {}
  std::vector<sortie::health::Finding> look(double now);
  /// Those that look() knows.
  std::vector<std::string> names() const;

 private:
  void look_at_networks(std::map<std::string, LinkLook>& found) const;
  void look_at_infiniband(std::map<std::string, LinkLook>& found) const;

  std::string root_;
  std::map<std::string, LinkState> links_;
};

}  // namespace sortie::runner::health
