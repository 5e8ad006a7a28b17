// The bytes of sortie-health, which the build puts into sortie-runner.
#pragma once

#include <string_view>

namespace sortie::runner {

std::string_view health_binary();

}  // namespace sortie::runner
