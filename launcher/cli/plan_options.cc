// The options of `sortie plan` about failures.
#include <CLI/CLI.hpp>

#include "launcher/cli/verb.h"

namespace sortie::launcher {

void add_reliability_options(CLI::App& app, AskedReliability& asked) {
  app.add_flag("--reliability", asked.wanted,
               "Also mean time to failure, how often to save, spares, share of useful time; as do "
               "the options below");
  const auto number = [&app](const char* name, std::optional<double>& value, const char* help,
                             double least, double most) {
    app.add_option(name, value, help)->check(CLI::Range(least, most));
  };
  ReliabilityOptions& options = asked.options;
  number("--failures", options.failures,
         "Failures of hosts per 1000 host-days (6.5, as a large cluster has reported)", 1e-6, 1e6);
  number("--mttf-node-hours", options.mttf_hours,
         "The same as hours between two failures of one host", 1e-3, 1e9);
  number("--save-bandwidth", options.save_bandwidth,
         "GB/s at which all ranks together write a checkpoint (1)", 1e-6, 1e6);
  number("--save-time", options.save_time,
         "Seconds that training stands still for a save, where that is known", 1e-6, 1e6);
  number("--restart-time", options.restart_time,
         "Seconds from a failure to the next first step (60)", 0, 1e6);
  number("--step-time", options.step_time, "Seconds of a step: intervals in steps too", 1e-6, 1e6);
}

bool wants_reliability(const AskedReliability& asked) {
  const ReliabilityOptions& options = asked.options;
  return asked.wanted || options.failures || options.mttf_hours || options.save_bandwidth ||
         options.save_time || options.restart_time || options.step_time;
}

}  // namespace sortie::launcher
