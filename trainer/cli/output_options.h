// What the user wants to see of sortie-train itself: -q and -v. Set once, before a verb runs;
// answers and the lines of a training are always printed.
#pragma once

#include <string_view>

namespace sortie::trainer {

struct OutputOptions {
  bool quiet = false;    // errors only: no progress, no warnings, no hints
  bool verbose = false;  // diagnostics of sortie-train, whatever logger.log_level says
};

inline OutputOptions& output_options() {
  static OutputOptions options;
  return options;
}

/// Diagnostics from `log_level` (a word of logger.log_level) on; with --quiet errors alone, with
/// --verbose all.
void init_log(std::string_view log_level);

}  // namespace sortie::trainer
