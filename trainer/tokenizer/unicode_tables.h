// Tables that scripts/make_unicode_tables.py derived from the `tokenizers` package. unicode.h and
// nfc.h use them.
#pragma once

#include <cstdint>
#include <span>

namespace sortie::trainer {

/// (first code point << 8 | flags) of each run of code points with equal flags; see unicode.h.
std::span<const std::uint32_t> flag_ranges();
/// (first code point << 8 | canonical combining class) of each run.
std::span<const std::uint32_t> combining_ranges();
/// (code point << 8 | n), then the n code points of its full decomposition; without Hangul.
std::span<const std::uint32_t> decomposition_values();
/// Triples, sorted: first, second, the code point they compose to; without Hangul.
std::span<const std::uint32_t> composition_values();

}  // namespace sortie::trainer
