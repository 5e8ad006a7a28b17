// The bytes of the program sortie-pmix, which the build embeds in sortie-runner so that a host
// needs only one file.
#pragma once

#include <string_view>

namespace sortie::runner {

std::string_view pmix_binary();

}  // namespace sortie::runner
