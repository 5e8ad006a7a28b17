// Special values of targets that are not tokens. Included by kernels, too.
#pragma once

#include <cstdint>

namespace sortie::trainer::ops {

/// No loss at this position.
inline constexpr std::int32_t kNoTarget = -100;
/// No loss here either: the last token of a document that is followed by another one in the
/// sequence.
inline constexpr std::int32_t kDocumentEnds = -101;

}  // namespace sortie::trainer::ops
