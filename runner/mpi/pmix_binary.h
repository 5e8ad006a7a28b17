// The bytes of sortie-pmix, which the build puts into sortie-runner so that one file is all a host
// needs.
#pragma once

#include <string_view>

namespace sortie::runner {

std::string_view pmix_binary();

}  // namespace sortie::runner
