#include <malloc.h>

#include <cstdio>
#include <exception>

#include "common/base/exit_code.h"
#include "launcher/cli/cli.h"

int main(int argc, char** argv) {
  // Pieces of output come and go 64 KiB at a time: the heap's end is not given back and faulted in
  // again for each.
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  try {
    return sortie::launcher::run_cli(argc, argv);
  } catch (const std::exception& error) {
    // Only a library's unexpected exception comes here: our own errors are values.
    std::fprintf(stderr, "sortie: internal error: %s\n", error.what());
    return sortie::kExitFailed;
  }
}
