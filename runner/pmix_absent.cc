#include "runner/pmix_binary.h"

namespace sortie::runner {

std::string_view pmix_binary() {
  return {};
}

}  // namespace sortie::runner
