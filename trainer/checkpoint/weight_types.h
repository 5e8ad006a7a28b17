// The element types that weights are stored in: F32, BF16 and F16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trainer/checkpoint/safetensors.h"

namespace sortie::trainer {

bool is_weight_type(StorageType type);

/// Converts contiguous stored elements to f32, which is exact. `from` may be unaligned.
void widen(StorageType type, const std::byte* from, std::int64_t count, float* to);
/// Converts f32 to elements of the type, rounded to nearest even. `to` may be unaligned.
void narrow(StorageType type, const float* from, std::int64_t count, std::byte* to);

/// Converts elements of one type to another; rounds to nearest even if that is narrower. Both may
/// be unaligned.
void convert(StorageType from_type, const std::byte* from, std::int64_t count, StorageType to_type,
             std::byte* to);

}  // namespace sortie::trainer
