// What [outer] and topology.gradient_compression come to: how sites train one model over slow links
// (DiLoCo, Douillard et al. 2023; fragments and overlap: Streaming DiLoCo, Douillard et al. 2025).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/hostlist.h"
#include "common/config/schema.h"
#include "common/config/validate.h"

namespace sortie::config {

/// Numbers as they travel between sites. The sub-byte and 8-bit floats have one power-of-two scale
/// (E8M0) per block, as OCP's microscaling formats do; int8 has one f32 scale per block.
enum class OuterWire : std::uint8_t { f32, bf16, int8, e4m3, e5m2, e2m1, e3m0 };
std::string_view outer_wire_name(OuterWire wire);
Result<OuterWire> parse_outer_wire(std::string_view name);
/// With scales, without headers: 4, 2, 1 + 4/block, 1 + 1/block, 1/2 + 1/block.
double bytes_per_value(OuterWire wire, std::int64_t block);
/// Formats of four bits, whose rounding is sent later by error feedback unless that is off.
bool is_sub_byte(OuterWire wire);

enum class OuterWeight : std::uint8_t { tokens, uniform };

struct OuterSettings {
  /// False: every step is a plain data-parallel one over all sites, its gradients in `wire`.
  bool rounds = false;
  std::int64_t every = 1;  // H: inner steps of a round
  double learning_rate = 0.7, momentum = 0.9;
  bool nesterov = true;
  OuterWire wire = OuterWire::f32;
  std::int64_t block = 32;
  bool error_feedback = false;
  std::int64_t fragments = 1;  // P
  std::int64_t overlap = 0;    // tau: inner steps; 0 = training waits for the exchange
  double mix = 0.0;            // alpha: share of its own weights that a site keeps; 0 = none
  std::int64_t streams = 4;
  std::int64_t min_sites = 1;
  Milliseconds deadline{0};  // 0 = learned
  OuterWeight weight = OuterWeight::tokens;
  bool equal_steps = false;      // slow sites, too, do `every` steps of a round
  std::int64_t start_after = 0;  // plain steps
};

/// The level that holds: what is configured, by one of its names (no, weak and strong, too), else
/// medium for more than one site and none for one.
std::string_view gradient_compression_level(const TopologyConfig& topology, std::int64_t sites);

/// Of a checked config. `sites`: how many are configured; 0 is as 1, hosts without a site. One site
/// has rounds where outer.every or a level asks for them (Lookahead, Zhang et al. 2019).
OuterSettings resolve_outer(const JobConfig& job, std::int64_t sites);

/// [topology] as the world of one site has it: its share of the global batch. Of a checked config.
TopologyConfig topology_of_site(const TopologyConfig& topology, std::int64_t sites);

/// What is wrong with [outer] whatever the hosts are (part of validate()): rules W1 to W4.
std::vector<Violation> check_outer(const JobConfig& job);
/// What is wrong for exactly these hosts, those of all sites: rules W1 and W4 to W8. Of
/// hosts without a site: keys of rounds, which do nothing there.
std::vector<Violation> check_sites(const JobConfig& job, const std::vector<HostSlots>& hosts);

}  // namespace sortie::config
