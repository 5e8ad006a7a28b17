// The command line of `sortie`.
#pragma once

namespace sortie::launcher {

/// Parses, runs the verb, returns the exit code.
int run_cli(int argc, char** argv);

}  // namespace sortie::launcher
