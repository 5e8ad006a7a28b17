#include "launcher/plan/reliability.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/quantity.h"
#include "launcher/plan/plan.h"
#include "launcher/recovery/spares.h"

namespace sortie::launcher {
using OrderedJson = nlohmann::ordered_json;
namespace {

constexpr double kDay = 86400, kHour = 3600;
constexpr double kConfidence = 0.99;
/// Size of a checkpoint (docs/training.md): weights in f32, and two moments per trained parameter.
double checkpoint_bytes(const training::ModelCost& cost, const config::OptimizerConfig& optimizer) {
  constexpr double kWeight = 4;
  const double moments = optimizer.moments == "bf16" ? 4 : 8;
  return kWeight * static_cast<double>(cost.parameters) +
         moments * static_cast<double>(cost.trained_parameters);
}

std::string assumed(bool it_is, const char* option) {
  return it_is ? fmt::format(" (assumed; {})", option) : "";
}

/// "58.2 h", "3.4 days"; "11.2 s" below a minute.
std::string long_time(double seconds) {
  if (seconds >= 3 * kDay) return fmt::format("{:.1f} days", seconds / kDay);
  if (seconds >= kHour) return fmt::format("{:.1f} h", seconds / kHour);
  return seconds >= 60 ? short_time(seconds) : fmt::format("{:.2g} s", seconds);
}

std::string steps_text(double seconds, const std::optional<double>& step) {
  if (!step) return "";
  return fmt::format(" = {:.0f} steps of {}", std::max(1.0, std::round(seconds / *step)),
                     long_time(*step));
}

std::string saving_text(const Reliability& found) {
  const ReliabilityInputs& in = found.inputs;
  if (!found.stall)
    return "the cost of a save is not known; give the seconds for which it blocks training "
           "(--save-time)";
  if (in.stall)
    return fmt::format("a save blocks training for {} (--save-time)", long_time(*found.stall));
  std::string out = fmt::format(
      "{}B at {}B/s{}: {}", short_number(*in.save_bytes), short_number(in.save_bandwidth),
      assumed(in.bandwidth_assumed, "--save-bandwidth"), long_time(*found.save));
  if (in.async_save)
    out += fmt::format("; a save blocks training for {}, while {} rank{} cop{} at {}B/s (assumed)",
                       long_time(*found.stall), in.ranks, in.ranks == 1 ? "" : "s",
                       in.ranks == 1 ? "ies" : "y", short_number(in.copy_bandwidth));
  return out;
}

}  // namespace

double young_interval(double stall, double mttf) {
  return std::sqrt(2 * stall * mttf);
}

double useful_share(double mttf, double restart, double interval, double stall) {
  const double lost = (restart + interval / 2) / mttf;
  return std::max(0.0, 1 - lost) / (1 + stall / interval);
}

std::size_t spares_for(double mttf, double refill) {
  const double mean = refill / mttf;
  // For larger means the terms underflow in double precision; the distribution is then nearly
  // normal: mean + 2.33 sigma.
  if (mean > 700) return static_cast<std::size_t>(std::ceil(mean + 2.33 * std::sqrt(mean)));
  double term = std::exp(-mean), sum = term;
  std::size_t spares = 0;
  while (sum < kConfidence) {
    ++spares;
    term *= mean / static_cast<double>(spares);
    sum += term;
  }
  return spares;
}

ReliabilityInputs reliability_inputs(const LaunchPlan& plan, const config::JobConfig& job,
                                     const ReliabilityOptions& options) {
  ReliabilityInputs in;
  in.hosts = plan.hosts.size();
  in.ranks = plan.world_size;
  if (const auto spares = job_spares(job, {})) in.spares = spares->size();
  if (options.mttf_hours) in.failures = 1000 * 24 / *options.mttf_hours;
  if (options.failures) in.failures = *options.failures;
  in.failures_assumed = !options.failures && !options.mttf_hours;
  in.save_bandwidth = options.save_bandwidth.value_or(1) * 1e9;
  in.bandwidth_assumed = !options.save_bandwidth;
  in.restart = options.restart_time.value_or(in.restart);
  in.restart_assumed = !options.restart_time;
  in.stall = options.save_time;
  in.step = options.step_time;
  if (plan.model) {
    in.save_bytes = checkpoint_bytes(plan.model->cost, job.optimizer);
    in.async_save = job.trainer.async_save;
    in.save_interval = job.trainer.save_interval;
  }
  return in;
}

Reliability reliability(const ReliabilityInputs& in) {
  Reliability out;
  out.inputs = in;
  out.mttf = 1000 * kDay / (in.failures * static_cast<double>(in.hosts));
  out.spares = spares_for(out.mttf, in.refill);
  if (in.save_bytes) {
    out.save = *in.save_bytes / in.save_bandwidth;
    const double copy = *in.save_bytes / static_cast<double>(in.ranks) / in.copy_bandwidth;
    out.stall = in.async_save ? std::min(copy, *out.save) : *out.save;
  }
  if (in.stall) out.stall = in.stall;
  if (!out.stall) return out;
  // A save begins after the previous one has finished, and at most once per step.
  out.interval = std::max({young_interval(*out.stall, out.mttf), out.save.value_or(0),
                           in.step.value_or(0), *out.stall});
  out.useful = useful_share(out.mttf, in.restart, *out.interval, *out.stall);
  if (in.step && in.save_interval > 0) {
    out.interval_set = *in.step * static_cast<double>(in.save_interval);
    out.useful_set = useful_share(out.mttf, in.restart, *out.interval_set, *out.stall);
  }
  return out;
}

std::string reliability_text(const Reliability& found) {
  const ReliabilityInputs& in = found.inputs;
  std::string out = "\nreliability\n";
  out += fmt::format("  failures  {:.3g} per 1000 host-days{}: on {} host{} one in {}\n",
                     in.failures, assumed(in.failures_assumed, "--failures, --mttf-node-hours"),
                     in.hosts, in.hosts == 1 ? "" : "s", long_time(found.mttf));
  out += fmt::format("  saving    {}\n", saving_text(found));
  if (found.interval)
    out += fmt::format("  interval  save every {}{} (Young)\n", long_time(*found.interval),
                       steps_text(*found.interval, in.step));
  out += fmt::format(
      "  spares    {} for 99 of 100 times of {} until one is replaced; recovery.spares has {}\n",
      found.spares, long_time(in.refill), in.spares);
  if (found.useful)
    out += fmt::format("  useful    {:.1f} % of the time, with restarts of {}{}\n",
                       100 * *found.useful, long_time(in.restart),
                       assumed(in.restart_assumed, "--restart-time"));
  if (found.useful_set)
    out += fmt::format("            {:.1f} % with trainer.save_interval = {} steps = {}\n",
                       100 * *found.useful_set, in.save_interval, long_time(*found.interval_set));
  return out;
}

nlohmann::ordered_json reliability_json(const Reliability& found) {
  const auto maybe = [](const std::optional<double>& value) {
    return value ? OrderedJson(*value) : OrderedJson(nullptr);
  };
  const ReliabilityInputs& in = found.inputs;
  return {{"inputs",
           {{"hosts", in.hosts},
            {"ranks", in.ranks},
            {"spares", in.spares},
            {"failures_per_1000_host_days", in.failures},
            {"failures_assumed", in.failures_assumed},
            {"save_bytes", maybe(in.save_bytes)},
            {"save_bytes_per_s", in.save_bandwidth},
            {"save_bandwidth_assumed", in.bandwidth_assumed},
            {"copy_bytes_per_s", in.copy_bandwidth},
            {"async_save", in.async_save},
            {"restart_s", in.restart},
            {"restart_assumed", in.restart_assumed},
            {"refill_s", in.refill},
            {"step_s", maybe(in.step)},
            {"save_interval_steps", in.save_interval}}},
          {"mttf_s", found.mttf},
          {"spares", found.spares},
          {"save_s", maybe(found.save)},
          {"stall_s", maybe(found.stall)},
          {"save_interval_s", maybe(found.interval)},
          {"useful_share", maybe(found.useful)},
          {"configured_interval_s", maybe(found.interval_set)},
          {"configured_useful_share", maybe(found.useful_set)}};
}

}  // namespace sortie::launcher
