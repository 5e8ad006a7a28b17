// PMIx status codes in answers of the launcher. They equal those of pmix_common.h, which only
// sortie-pmix may include.
#pragma once

#include <cstdint>

namespace sortie::launcher {

inline constexpr std::int32_t kPmixErrBadParam = -27, kPmixErrOutOfResource = -29,
                              kPmixErrNotFound = -46, kPmixErrPartialSuccess = -52,
                              kPmixErrDuplicateKey = -53;

}  // namespace sortie::launcher
