#include "launcher/plan/outer_plan.h"

#include <algorithm>

namespace sortie::launcher {
namespace {

constexpr double kFloatBytes = 4.0;
/// Per exchange: two for the data in both directions, two for the coordinator's order and decision.
constexpr double kRoundTrips = 4.0;

bool same_rounds(const config::OuterSettings& a, const config::OuterSettings& b) {
  return a.rounds == b.rounds && a.every == b.every && a.wire == b.wire && a.block == b.block &&
         a.error_feedback == b.error_feedback && a.fragments == b.fragments &&
         a.overlap == b.overlap;
}

/// Exchange time besides the transfer: latency of each fragment, and the codec.
double fixed_seconds(const config::OuterSettings& settings, const OuterLoad& load) {
  const auto sites = static_cast<double>(load.sites);
  const double latency =
      kRoundTrips * load.round_trip * static_cast<double>(settings.rounds ? settings.fragments : 1);
  if (settings.wire == config::OuterWire::f32 || load.codec_byte_s <= 0.0) return latency;
  // Encodes own chunks for the others, decodes theirs, encodes the mean of its own part, decodes
  // all means.
  const double passes = 2.0 * (sites - 1.0) / sites + 1.0 / sites + 1.0;
  const double bytes = kFloatBytes * load.elements / static_cast<double>(load.leaders);
  return latency + passes * bytes / (load.codec_byte_s * static_cast<double>(load.threads));
}

/// Seconds of a round in which training overlaps the exchange of fragments.
double hidden_seconds(const config::OuterSettings& settings, const OuterLoad& load) {
  if (!settings.rounds) return 0.0;
  return static_cast<double>(settings.fragments * settings.overlap) * load.step_seconds;
}

double training_seconds(const config::OuterSettings& settings, const OuterLoad& load) {
  return static_cast<double>(settings.rounds ? settings.every : 1) * load.step_seconds;
}

}  // namespace

double round_bytes(const config::OuterSettings& settings, const OuterLoad& load) {
  const auto sites = static_cast<double>(load.sites);
  return 2.0 * (sites - 1.0) / sites * load.elements *
         config::bytes_per_value(settings.wire, settings.block);
}

OuterPrediction predict_outer(const config::OuterSettings& settings, const OuterLoad& load) {
  OuterPrediction out;
  const double trains = training_seconds(settings, load);
  out.bytes = round_bytes(settings, load);
  if (load.sites > 1 && load.byte_s > 0.0)
    out.exchange = out.bytes / load.byte_s + fixed_seconds(settings, load);
  out.waits = std::max(0.0, out.exchange - hidden_seconds(settings, load));
  out.round = trains + out.waits;
  out.useful = out.round > 0.0 ? trains / out.round : 0.0;
  return out;
}

std::optional<double> rate_for(const config::OuterSettings& settings, const OuterLoad& load,
                               double share) {
  const double may_wait = training_seconds(settings, load) * (1.0 / share - 1.0);
  const double left = may_wait + hidden_seconds(settings, load) - fixed_seconds(settings, load);
  if (left <= 0.0) return std::nullopt;
  return round_bytes(settings, load) / left;
}

OuterMemory outer_memory(const config::OuterSettings& settings, const OuterLoad& load) {
  const double part = kFloatBytes * load.elements / static_cast<double>(load.leaders);
  OuterMemory out;
  if (settings.rounds) out.state = 2.0 * part;
  if (settings.error_feedback) out.error_feedback = part;
  out.exchange = 2.0 * part / static_cast<double>(settings.fragments);
  return out;
}

std::vector<LevelPlan> levels_of(const config::JobConfig& job, std::int64_t sites) {
  std::vector<LevelPlan> levels;
  for (const char* level : {"none", "low", "medium", "high"}) {
    config::JobConfig plain = job;
    plain.outer = {};
    plain.topology.gradient_compression = level;
    levels.push_back({level, config::resolve_outer(plain, sites)});
  }
  const config::OuterSettings own = config::resolve_outer(job, sites);
  if (std::ranges::none_of(
          levels, [&](const LevelPlan& level) { return same_rounds(level.settings, own); }))
    levels.push_back({"configured", own});
  return levels;
}

std::string smallest_level(const std::vector<LevelPlan>& levels, const OuterLoad& load) {
  for (const LevelPlan& level : levels)
    if (level.level != "configured" && predict_outer(level.settings, load).useful >= kUsefulEnough)
      return level.level;
  return "";
}

}  // namespace sortie::launcher
