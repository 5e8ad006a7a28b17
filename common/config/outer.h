// Resolves [outer] and topology.gradient_compression: how sites train one model over slow links
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

/// Number format between sites. The 8-bit and sub-byte floats have one power-of-two scale (E8M0)
/// per block, like OCP's microscaling formats; int8 has one f32 scale per block.
enum class OuterWire : std::uint8_t { f32, bf16, int8, e4m3, e5m2, e2m1, e3m0 };
std::string_view outer_wire_name(OuterWire wire);
Result<OuterWire> parse_outer_wire(std::string_view name);
/// Bytes including scales, without headers: 4, 2, 1 + 4/block, 1 + 1/block, 1/2 + 1/block.
double bytes_per_value(OuterWire wire, std::int64_t block);
/// True for the 4-bit formats. By default their rounding error is sent later (error feedback).
bool is_sub_byte(OuterWire wire);

enum class OuterWeight : std::uint8_t { tokens, uniform };

struct OuterSettings {
  /// False: every step is plain data parallelism over all sites, with gradients in format `wire`.
  bool rounds = false;
  std::int64_t every = 1;  // H: inner steps per round
  double learning_rate = 0.7, momentum = 0.9;
  bool nesterov = true;
  OuterWire wire = OuterWire::f32;
  std::int64_t block = 32;
  bool error_feedback = false;
  std::int64_t fragments = 1;  // P
  std::int64_t overlap = 0;    // tau: inner steps during an exchange; 0 = training waits for it
  double mix = 0.0;            // alpha: share of its own weights that a site keeps
  std::int64_t streams = 4;
  std::int64_t min_sites = 1;
  Milliseconds deadline{0};  // 0 = learned
  OuterWeight weight = OuterWeight::tokens;
  bool equal_steps = false;      // slow sites also do `every` steps per round
  std::int64_t start_after = 0;  // plain data-parallel steps before the first round
};

/// The effective level: the configured one, under its main name (no, weak and strong are aliases).
/// "auto" is medium for more than one site, else none.
std::string_view gradient_compression_level(const TopologyConfig& topology, std::int64_t sites);

/// Whether the config asks for rounds on any number of sites: by outer.every or by a level.
bool asks_for_rounds(const JobConfig& job);

/// Settings for a valid config. `sites` is the number of configured sites; 0 means hosts without a
/// site and is treated as 1. One site has rounds if outer.every or a level sets them (Lookahead,
/// Zhang et al. 2019).
OuterSettings resolve_outer(const JobConfig& job, std::int64_t sites);

/// [topology] for the world of one site, with its share of the global batch. For a valid config.
TopologyConfig topology_of_site(const TopologyConfig& topology, std::int64_t sites);

/// Violations of rules W1 to W4 that do not depend on the hosts (part of validate()).
std::vector<Violation> check_outer(const JobConfig& job);
/// Violations of rules W1 and W4 to W8 for exactly these hosts, which are those of all sites. For
/// hosts without a site: keys of rounds, which have no effect there.
std::vector<Violation> check_sites(const JobConfig& job, const std::vector<HostSlots>& hosts);

}  // namespace sortie::config
