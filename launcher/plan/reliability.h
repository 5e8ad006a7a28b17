// What failures cost a run, before it starts: mean time to failure, how often to save, how many
// spares, and the share of time that trains. Pure arithmetic; every input is in the output.
//
//   failures      come at random, at the same rate on each host (Poisson)
//   MTTF          1 / (hosts x rate)
//   interval      sqrt(2 x stall x MTTF): Young, "A first order approximation to the optimum
//                 checkpoint interval", CACM 17 (1974); never shorter than a save takes
//   useful        (1 - (restart + interval / 2) / MTTF) / (1 + stall / interval): Kokolis et al.,
//                 "Revisiting Reliability in Large-Scale Machine Learning Research Clusters",
//                 HPCA 2025, E[ETTR] of a run that never waits for hosts
//   spares        the fewest that suffice for 99 of 100 refill times
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "common/config/schema.h"

namespace sortie::launcher {

struct LaunchPlan;

/// Failures of hosts per 1000 host-days of a large cluster with 8 GPUs a host, over 11 months
/// (Kokolis et al.): what is taken where the user says nothing.
inline constexpr double kUsualFailures = 6.5;

/// What the user says; nothing = assumed or from the job.
struct ReliabilityOptions {
  std::optional<double> failures;        // per 1000 host-days, > 0
  std::optional<double> mttf_hours;      // of one host, in place of that
  std::optional<double> save_bandwidth;  // of all ranks to the disk, GB/s (10^9 bytes)
  std::optional<double> save_time;       // seconds that training stands still for a save
  std::optional<double> restart_time;    // seconds from a failure to the next first step
  std::optional<double> step_time;       // seconds
};

struct ReliabilityInputs {
  std::size_t hosts = 1, ranks = 1, spares = 0;
  double failures = kUsualFailures;  // per 1000 host-days
  std::optional<double> save_bytes;  // of a checkpoint
  double save_bandwidth = 1e9;       // bytes/s of all ranks
  double copy_bandwidth = 2e9;       // bytes/s of a rank that copies its state beside training
  bool async_save = false;           // trainer.async_save: training stands still for the copy alone
  std::optional<double> stall;       // seconds, where the user said it
  double restart = 60, refill = 86400;  // seconds; refill: until a spare that was used is replaced
  std::optional<double> step;           // seconds
  std::int64_t save_interval = 0;       // trainer.save_interval, steps
  bool failures_assumed = true, bandwidth_assumed = true, restart_assumed = true;
};

struct Reliability {
  ReliabilityInputs inputs;
  double mttf = 0;         // seconds, of the run
  std::size_t spares = 0;  // recommended
  // Where the cost of a save is known:
  std::optional<double> save, stall;  // seconds: from state to commit; training stands still
  std::optional<double> interval;     // recommended, seconds
  std::optional<double> useful;       // share of time with it, 0 to 1
  // Where the time of a step is known too, and save_interval is set:
  std::optional<double> interval_set, useful_set;
};

ReliabilityInputs reliability_inputs(const LaunchPlan& plan, const config::JobConfig& job,
                                     const ReliabilityOptions& options);
Reliability reliability(const ReliabilityInputs& inputs);

/// The formulas above, in seconds; useful_share is 0 where failures leave nothing.
double young_interval(double stall, double mttf);
double useful_share(double mttf, double restart, double interval, double stall);
/// Fewest spares s so that P(failures within `refill` <= s) >= 0.99.
std::size_t spares_for(double mttf, double refill);

std::string reliability_text(const Reliability& found);
nlohmann::ordered_json reliability_json(const Reliability& found);

}  // namespace sortie::launcher
