// The command line of `sortie`.
#pragma once

namespace sortie::launcher {

/// Parses the command line and runs the verb. Returns the exit code.
int run_cli(int argc, char** argv);

}  // namespace sortie::launcher
