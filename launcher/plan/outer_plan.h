// Predicts what training over several sites sends and how long it waits. Pure arithmetic.
//
// S: bytes of the model in the wire format. M: number of sites. B: bytes/s of the slowest link
// between two sites. In an exchange by owners each site sends (M - 1) / M S twice:
//
//   T       = 2 (M - 1) / M S / B + 4 P R + codec    all P fragments of a round (P = 1 without
//                                                    rounds); R: round trip, two per fragment for
//                                                    the data in both directions and two for order
//                                                    and decision of the coordinator
//   waits   = max(0, T - P tau t)                    each fragment overlaps tau steps of t seconds
//   useful  = H t / (H t + waits)                    share of the time of a round of H steps
//
// The model assumes that the links of a site to all others share one uplink. The overlap of steps
// with an exchange is that of Streaming DiLoCo (Douillard et al. 2025).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/config/outer.h"

namespace sortie::launcher {

struct OuterLoad {
  std::int64_t sites = 2;
  double elements = 0.0;      // trained parameters of the model
  std::int64_t leaders = 1;   // leaders per site, each with an equal part of the model
  double step_seconds = 0.0;  // t
  double byte_s = 0.0;        // B
  double round_trip = 0.0;    // R, seconds
  /// Bytes of f32 that one core of a leader encodes or decodes per second, and its number of cores.
  /// codec_byte_s = 0: the codec takes no time.
  double codec_byte_s = 1e9;
  std::int64_t threads = 1;
};

struct OuterPrediction {
  double bytes = 0.0;     // sent by a site per round
  double exchange = 0.0;  // T of all fragments, seconds
  double waits = 0.0;     // part of it during which training waits
  double round = 0.0;     // seconds per round, including waits
  double useful = 0.0;    // share of it spent training
};
/// Predicts a round with `settings`. Without rounds, a round is one step whose gradients are
/// exchanged.
OuterPrediction predict_outer(const config::OuterSettings& settings, const OuterLoad& load);

/// Bytes sent by a site per round.
double round_bytes(const config::OuterSettings& settings, const OuterLoad& load);

/// Returns the bytes/s of the slowest link that suffice to train for `share` of the time. nullopt
/// if no rate suffices, because of the round trips and the codec.
std::optional<double> rate_for(const config::OuterSettings& settings, const OuterLoad& load,
                               double share);

/// Bytes of host memory per leader: `state`: outer weights and momentum; `error_feedback`: rounding
/// errors carried over; `exchange`: own change and mean during an exchange.
struct OuterMemory {
  double state = 0.0, error_feedback = 0.0, exchange = 0.0;
};
OuterMemory outer_memory(const config::OuterSettings& settings, const OuterLoad& load);

/// A compression level: a named level with its defaults for this job, or the settings of the job
/// itself.
struct LevelPlan {
  std::string level;  // "none", "low", "medium", "high"; "configured"
  config::OuterSettings settings;
};
/// Returns the named levels, from most bytes to fewest, then the job's own settings unless they
/// equal one of those.
std::vector<LevelPlan> levels_of(const config::JobConfig& job, std::int64_t sites);

inline constexpr double kUsefulEnough = 0.9;
/// Returns the first named level with which at least kUsefulEnough of the time is spent training;
/// "" if there is none.
std::string smallest_level(const std::vector<LevelPlan>& levels, const OuterLoad& load);

}  // namespace sortie::launcher
