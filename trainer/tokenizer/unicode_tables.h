// What scripts/make_unicode_tables.py learnt from the `tokenizers` package, as it was written down.
// unicode.h and nfc.h are how to use it.
#pragma once

#include <cstdint>
#include <span>

namespace sortie::trainer {

/// (first code point << 8 | flags) of each run of code points with equal flags; see unicode.h.
std::span<const std::uint32_t> flag_ranges();
/// (first code point << 8 | canonical combining class) of each run.
std::span<const std::uint32_t> combining_ranges();
/// (code point << 8 | n), then the n code points it decomposes to for good; without Hangul.
std::span<const std::uint32_t> decomposition_values();
/// Triples, sorted: first, second, the code point they compose to; without Hangul.
std::span<const std::uint32_t> composition_values();

}  // namespace sortie::trainer
