// PMIx's status codes that the launcher answers with. pmix_common.h has them; only sortie-pmix may
// include it.
#pragma once

#include <cstdint>

namespace sortie::launcher {

inline constexpr std::int32_t kPmixErrBadParam = -27, kPmixErrOutOfResource = -29,
                              kPmixErrNotFound = -46, kPmixErrPartialSuccess = -52,
                              kPmixErrDuplicateKey = -53;

}  // namespace sortie::launcher
