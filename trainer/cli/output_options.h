// Output options of sortie-train: -q and -v. Set once, before a verb runs. Results and the lines of
// a training run are always printed.
#pragma once

#include <string_view>

namespace sortie::trainer {

struct OutputOptions {
  bool quiet = false;    // errors only: no progress, no warnings, no hints
  bool verbose = false;  // diagnostics of sortie-train, regardless of logger.log_level
};

inline OutputOptions& output_options() {
  static OutputOptions options;
  return options;
}

/// Prints diagnostics from `log_level` (a word of logger.log_level) on; only errors with --quiet,
/// everything with --verbose.
void init_log(std::string_view log_level);

}  // namespace sortie::trainer
