// The bytes of the program sortie-health, which the build embeds in sortie-runner.
#pragma once

#include <string_view>

namespace sortie::runner {

std::string_view health_binary();

}  // namespace sortie::runner
