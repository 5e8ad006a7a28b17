#include "common/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace sortie {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "%s:%d: internal error: %s is false%s%s (this is a bug in Sortie)\n", file,
               line, condition, message.empty() ? "" : ": ", message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace sortie
