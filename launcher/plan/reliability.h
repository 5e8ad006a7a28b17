// Predicts what failures cost a run: mean time to failure, how often to save, how many spares, and
// the share of useful time. Pure arithmetic; every input is in the output.
//
//   failures      Poisson process with the same rate on each host
//   MTTF          1 / (hosts x rate)
//   interval      sqrt(2 x stall x MTTF): Young, "A first order approximation to the optimum
//                 checkpoint interval", CACM 17 (1974); at least the duration of a save
//   useful        (1 - (restart + interval / 2) / MTTF) / (1 + stall / interval): Kokolis et al.,
//                 "Revisiting Reliability in Large-Scale Machine Learning Research Clusters",
//                 HPCA 2025, E[ETTR] of a run that never waits for hosts
//   spares        the fewest that suffice in 99 % of refill times
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "common/config/schema.h"

namespace sortie::launcher {

struct LaunchPlan;

/// Default failure rate: host failures per 1000 host-days of a large cluster with 8 GPUs per host,
/// over 11 months (Kokolis et al.).
inline constexpr double kUsualFailures = 6.5;

/// Values given by the user; nullopt = assumed, or from the job.
struct ReliabilityOptions {
  std::optional<double> failures;        // per 1000 host-days, > 0
  std::optional<double> mttf_hours;      // of one host; alternative to `failures`
  std::optional<double> save_bandwidth;  // of all ranks together to storage, GB/s (10^9 bytes)
  std::optional<double> save_time;       // seconds for which a save blocks training
  std::optional<double> restart_time;    // seconds from a failure to the next step
  std::optional<double> step_time;       // seconds
};

struct ReliabilityInputs {
  std::size_t hosts = 1, ranks = 1, spares = 0;
  double failures = kUsualFailures;     // per 1000 host-days
  std::optional<double> save_bytes;     // bytes of a checkpoint
  double save_bandwidth = 1e9;          // bytes/s of all ranks together
  double copy_bandwidth = 2e9;          // bytes/s at which a rank copies its state in memory
  bool async_save = false;              // trainer.async_save: only the copy blocks training
  std::optional<double> stall;          // seconds, if given by the user
  double restart = 60, refill = 86400;  // seconds; refill: until a used spare is replaced
  std::optional<double> step;           // seconds
  std::int64_t save_interval = 0;       // trainer.save_interval, steps
  bool failures_assumed = true, bandwidth_assumed = true, restart_assumed = true;
};

struct Reliability {
  ReliabilityInputs inputs;
  double mttf = 0;         // seconds, of the run
  std::size_t spares = 0;  // recommended
  // Set if the cost of a save is known:
  std::optional<double> save, stall;  // seconds: until the commit; of blocked training
  std::optional<double> interval;     // recommended, seconds
  std::optional<double> useful;       // useful share of time with it, 0 to 1
  // Set if also the step time is known and save_interval is set:
  std::optional<double> interval_set, useful_set;
};

ReliabilityInputs reliability_inputs(const LaunchPlan& plan, const config::JobConfig& job,
                                     const ReliabilityOptions& options);
Reliability reliability(const ReliabilityInputs& inputs);

/// The formulas above, in seconds. useful_share() is 0 if failures leave no useful time.
double young_interval(double stall, double mttf);
double useful_share(double mttf, double restart, double interval, double stall);
/// Returns the smallest s with P(failures within `refill` <= s) >= 0.99.
std::size_t spares_for(double mttf, double refill);

std::string reliability_text(const Reliability& found);
nlohmann::ordered_json reliability_json(const Reliability& found);

}  // namespace sortie::launcher
