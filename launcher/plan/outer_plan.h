// What training over several sites sends and how long it waits, before it starts. Pure arithmetic.
//
// With S bytes of a model in the format of the wire, M sites and the slowest way between two of
// them, B bytes/s: an exchange by owners sends (M - 1) / M S twice from each site,
//
//   T       = 2 (M - 1) / M S / B + 4 R + codec    R: round trip; two for the bytes to arrive and
//                                                  two for the coordinator's order and decision
//   waits   = max(0, T - P tau t)                  P fragments, each tau steps of t s under way
//   useful  = H t / (H t + waits)                  of the time of a round of H steps
//
// A site's ways to all others share one uplink here. Steps that overlap an exchange are Streaming
// DiLoCo's (Douillard et al. 2025).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/config/outer.h"

namespace sortie::launcher {

struct OuterLoad {
  std::int64_t sites = 2;
  double elements = 0.0;      // of the model that are trained
  std::int64_t leaders = 1;   // of a site, each with as large a part
  double step_seconds = 0.0;  // t
  double byte_s = 0.0;        // B
  double round_trip = 0.0;    // R, seconds
  /// Bytes of f32 that a core of a leader encodes or decodes in a second, and its cores; 0: it
  /// takes no time.
  double codec_byte_s = 1e9;
  std::int64_t threads = 1;
};

struct OuterPrediction {
  double bytes = 0.0;     // that a site sends in a round
  double exchange = 0.0;  // T of all fragments, seconds
  double waits = 0.0;     // of it, for which training stands still
  double round = 0.0;     // seconds of a round, waits included
  double useful = 0.0;    // share of it that trains
};
/// Of `settings`; without rounds a round is a step, whose gradients are exchanged.
OuterPrediction predict_outer(const config::OuterSettings& settings, const OuterLoad& load);

/// Bytes that a site sends in a round.
double round_bytes(const config::OuterSettings& settings, const OuterLoad& load);

/// Bytes/s of the slowest way with which `share` of the time trains; nothing where no rate is
/// enough, because of the round trips.
std::optional<double> rate_for(const config::OuterSettings& settings, const OuterLoad& load,
                               double share);

/// Bytes of host memory of one leader: outer weights and momentum; what rounding has lost; and its
/// change and the mean while they are exchanged.
struct OuterMemory {
  double state = 0.0, error_feedback = 0.0, exchange = 0.0;
};
OuterMemory outer_memory(const config::OuterSettings& settings, const OuterLoad& load);

/// A level by name with its defaults for this job, or what the job itself has.
struct LevelPlan {
  std::string level;  // "none", "low", "medium", "high"; "configured"
  config::OuterSettings settings;
};
/// The levels from the most bytes to the fewest, and the job's own settings last where they are
/// none of those.
std::vector<LevelPlan> levels_of(const config::JobConfig& job, std::int64_t sites);

inline constexpr double kUsefulEnough = 0.9;
/// The first of the levels (not "configured") with which kUsefulEnough of the time trains; empty
/// when none is enough.
std::string smallest_level(const std::vector<LevelPlan>& levels, const OuterLoad& load);

}  // namespace sortie::launcher
