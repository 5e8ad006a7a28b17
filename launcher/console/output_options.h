// What the user wants to see of Sortie itself: -q, -v, --no-color and the variables that go with
// them. Set once, before a verb runs; ranks' output and answers are always shown.
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

/// logger.log_level, or more with --verbose.
void init_log(std::string_view log_level);

/// NO_COLOR and --no-color win over CLICOLOR_FORCE, which wins over "only on a terminal".
bool use_color(bool terminal);

}  // namespace sortie::launcher
