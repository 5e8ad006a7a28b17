#include "runner/mpi/pmix_binary.h"

// SORTIE_PMIX_BINARY is the path of the stripped executable. The build makes this file depend on
// it.
asm(".pushsection .rodata\n"
    ".balign 16\n"
    "sortie_pmix_begin:\n"
    ".incbin \"" SORTIE_PMIX_BINARY
    "\"\n"
    "sortie_pmix_end:\n"
    ".byte 0\n"
    ".popsection\n");

extern "C" {
extern const char sortie_pmix_begin[];
extern const char sortie_pmix_end[];
}

namespace sortie::runner {

std::string_view pmix_binary() {
  return {sortie_pmix_begin, static_cast<std::size_t>(sortie_pmix_end - sortie_pmix_begin)};
}

}  // namespace sortie::runner
