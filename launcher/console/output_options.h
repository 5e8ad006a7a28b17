// How much Sortie itself prints: -q, -v, --no-color and the corresponding variables. Set once,
// before a verb runs. Output of ranks and answers of commands are always printed.
#pragma once

#include <string_view>

namespace sortie::launcher {

struct OutputOptions {
  bool quiet = false;    // errors only
  bool verbose = false;  // diagnostics of Sortie itself, whatever logger.log_level says
  bool no_color = false;
};

inline OutputOptions& output_options() {
  static OutputOptions options;
  return options;
}

/// Initializes logging at `log_level` (logger.log_level), or at level debug with --verbose.
void init_log(std::string_view log_level);

/// Whether to use color. NO_COLOR and --no-color override CLICOLOR_FORCE, which overrides the
/// default: only on a terminal.
bool use_color(bool terminal);

}  // namespace sortie::launcher
