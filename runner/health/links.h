// Watches the network links of this host's adapters (Ethernet, InfiniBand). Bridges, tunnels and
// containers' interfaces are ignored: they come and go with their users.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/health/finding.h"

namespace sortie::runner::health {

/// A link that is down for this long is reported as down; a shorter time is a brief loss.
inline constexpr double kDownSeconds = 5;
/// A link that goes down this often within this time flaps.
inline constexpr std::uint64_t kFlaps = 3;
inline constexpr double kFlapSeconds = 300;

/// State of one link at one time.
struct LinkLook {
  bool up = false;
  std::uint64_t downs = 0;  // how often it went down since its driver was loaded; never decreases
};

/// Follows one link over time. Pure.
class LinkState {
 public:
  std::vector<sortie::health::Finding> look(const LinkLook& look, double now);

 private:
  std::optional<LinkLook> last_;
  bool was_up_ = false;  // at any time before: a port without a cable is no fault
  std::optional<double> down_since_;
  bool down_told_ = false;
  std::deque<double> downs_;  // times in seconds, within kFlapSeconds
};

class Links {
 public:
  /// `root` is prepended to /sys, for tests.
  explicit Links(std::string root) : root_(std::move(root)) {}
  std::vector<sortie::health::Finding> look(double now);
  /// Names of the links that the last look() found.
  std::vector<std::string> names() const;

 private:
  void look_at_networks(std::map<std::string, LinkLook>& found) const;
  void look_at_infiniband(std::map<std::string, LinkLook>& found) const;

  std::string root_;
  std::map<std::string, LinkState> links_;
};

}  // namespace sortie::runner::health
