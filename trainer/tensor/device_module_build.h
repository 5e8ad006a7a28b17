// Which build a program or a device module is of. Included by the two files that compare it alone, as it changes often.
#pragma once

#include "generated/shared_headers.h"  // SORTIE_SHARED_HEADERS, by the build

namespace sortie::trainer {

/// What must be the same for program and module to share classes: the headers of these, by the hash
/// of all that either includes of the other (CMakeLists.txt), and the compiler.
inline constexpr const char* kDeviceModuleBuild = SORTIE_VERSION "/" SORTIE_SHARED_HEADERS " " __VERSION__;

}  // namespace sortie::trainer
