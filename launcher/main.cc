#include <cstdio>
#include <exception>

#include "common/base/exit_code.h"
#include "common/base/heap.h"
#include "launcher/cli/cli.h"

int main(int argc, char** argv) {
  sortie::keep_freed_pieces();
  try {
    return sortie::launcher::run_cli(argc, argv);
  } catch (const std::exception& error) {
    // Only a library's unexpected exception comes here: our own errors are values.
    std::fprintf(stderr, "sortie: internal error: %s\n", error.what());
    return sortie::kExitFailed;
  }
}
