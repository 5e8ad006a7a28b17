// Targets that are no token. For kernels, too.
#pragma once

#include <cstdint>

namespace sortie::trainer::ops {

/// No loss at this place.
inline constexpr std::int32_t kNoTarget = -100;
/// Nor here: the last token of a document, whose sequence goes on with another one.
inline constexpr std::int32_t kDocumentEnds = -101;

}  // namespace sortie::trainer::ops
