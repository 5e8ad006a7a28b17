// What the user wants to see of Sortie itself: -q, -v, --no-color and the variables that go with
// them. Set once, before a verb runs; ranks' output and answers are always shown.
#pragma once

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

/// NO_COLOR and --no-color win over CLICOLOR_FORCE, which wins over "only on a terminal".
bool use_color(bool terminal);

}  // namespace sortie::launcher
