#include "runner/helper/health_binary.h"

// SORTIE_HEALTH_BINARY is the path of the stripped executable. The build makes this file depend on
// it.
asm(".pushsection .rodata\n"
    ".balign 16\n"
    "sortie_health_begin:\n"
    ".incbin \"" SORTIE_HEALTH_BINARY
    "\"\n"
    "sortie_health_end:\n"
    ".byte 0\n"
    ".popsection\n");

extern "C" {
extern const char sortie_health_begin[];
extern const char sortie_health_end[];
}

namespace sortie::runner {

std::string_view health_binary() {
  return {sortie_health_begin, static_cast<std::size_t>(sortie_health_end - sortie_health_begin)};
}

}  // namespace sortie::runner
