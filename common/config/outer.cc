#include "common/config/outer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "common/base/check.h"
#include "common/config/text.h"

namespace sortie::config {
namespace {

constexpr std::array<std::string_view, 7> kWireNames = {"f32",  "bf16", "int8", "e4m3",
                                                        "e5m2", "e2m1", "e3m0"};

/// Settings of a level. With these inner steps and wires the loss stays within about 1 % of data
/// parallelism's from some ten million parameters on (Douillard et al. 2023, Charles et al. 2025).
/// `high` is Streaming DiLoCo: with four fragments, exchanging one takes a quarter of the time of
/// the whole model, and five steps of delay cost no measurable loss there.
struct Level {
  std::string_view name, alias;
  std::int64_t every;
  OuterWire wire;
  std::int64_t fragments, overlap;
};
constexpr Level kLevels[] = {{"none", "no", 1, OuterWire::f32, 1, 0},
                             {"low", "weak", 20, OuterWire::bf16, 1, 0},
                             {"medium", "medium", 50, OuterWire::e4m3, 1, 0},
                             {"high", "strong", 100, OuterWire::e2m1, 4, 5}};
/// Share of its own weights that a site keeps if it continued to train during the exchange (ibid.).
constexpr double kMixOfOverlap = 0.5;

const Level& level_of(const TopologyConfig& topology, std::int64_t sites) {
  for (const Level& level : kLevels)
    if (topology.gradient_compression == level.name || topology.gradient_compression == level.alias)
      return level;
  return kLevels[sites > 1 ? 2 : 0];  // auto
}

}  // namespace

std::string_view outer_wire_name(OuterWire wire) {
  return kWireNames[static_cast<std::size_t>(wire)];
}

Result<OuterWire> parse_outer_wire(std::string_view name) {
  const auto found = std::ranges::find(kWireNames, name);
  if (found != kWireNames.end()) return static_cast<OuterWire>(found - kWireNames.begin());
  return fail(ErrorCode::config, fmt::format("{} is no number format between sites; use {}",
                                             quote(shorten(name)), fmt::join(kWireNames, ", ")));
}

double bytes_per_value(OuterWire wire, std::int64_t block) {
  const auto values = static_cast<double>(block);
  switch (wire) {
    case OuterWire::f32:
      return 4.0;
    case OuterWire::bf16:
      return 2.0;
    case OuterWire::int8:
      return 1.0 + 4.0 / values;
    case OuterWire::e4m3:
    case OuterWire::e5m2:
      return 1.0 + 1.0 / values;
    case OuterWire::e2m1:
    case OuterWire::e3m0:
      return 0.5 + 1.0 / values;
  }
  return 0.0;
}

bool is_sub_byte(OuterWire wire) {
  return wire == OuterWire::e2m1 || wire == OuterWire::e3m0;
}

std::string_view gradient_compression_level(const TopologyConfig& topology, std::int64_t sites) {
  return level_of(topology, sites).name;
}

bool asks_for_rounds(const JobConfig& job) {
  const std::string& level = job.topology.gradient_compression;
  if (level == "auto") return job.outer.every > 0;
  return level != "none" && level != "no";
}

OuterSettings resolve_outer(const JobConfig& job, std::int64_t sites) {
  SORTIE_CHECK(sites >= 0, "{} sites", sites);
  const OuterConfig& outer = job.outer;
  Level level = level_of(job.topology, sites);
  const bool none = level.name == "none";
  OuterSettings out;
  // One site alone is plain data parallelism, unless outer.every is set (Lookahead).
  out.rounds = !none || (job.topology.gradient_compression == "auto" && outer.every > 0);
  if (none && out.rounds) level = {"", "", outer.every, OuterWire::f32, 1, 0};
  out.wire = level.wire;
  if (const auto wire = parse_outer_wire(outer.wire)) out.wire = *wire;
  out.block = outer.block;
  out.error_feedback = outer.error_feedback == "on" ||
                       (outer.error_feedback == "auto" && out.rounds && is_sub_byte(out.wire));
  out.streams = outer.streams;
  out.min_sites =
      outer.min_sites > 0 ? outer.min_sites : std::max<std::int64_t>((sites + 1) / 2, 1);
  out.deadline = outer.deadline;
  out.weight = outer.weight == "uniform" ? OuterWeight::uniform : OuterWeight::tokens;
  out.equal_steps = outer.equal_steps;
  out.momentum = outer.momentum;
  out.nesterov = outer.nesterov;
  // The best of the values that Charles et al. 2025 tried: for 1, 2 and 4 sites, and for 8 sites.
  out.learning_rate = outer.learning_rate > 0 ? outer.learning_rate : sites <= 2 ? 0.6 : 0.7;
  if (!out.rounds) return out;
  out.every = outer.every > 0 ? outer.every : level.every;
  out.start_after = outer.start_after;
  out.fragments = outer.fragments > 0
                      ? outer.fragments
                      : std::min({level.fragments, job.model.num_layers, out.every});
  out.overlap =
      outer.overlap >= 0 ? outer.overlap : std::min(level.overlap, out.every / out.fragments - 1);
  out.mix = outer.mix >= 0 ? outer.mix : out.overlap > 0 ? kMixOfOverlap : 0.0;
  return out;
}

TopologyConfig topology_of_site(const TopologyConfig& topology, std::int64_t sites) {
  SORTIE_CHECK(sites >= 1, "{} sites", sites);
  TopologyConfig out = topology;
  out.global_batch_size /= sites;
  return out;
}

}  // namespace sortie::config
