// Converts the index of Scaling's memory map (PREFIX.bin, PREFIX.idx, PREFIX.meta.json) into a
// Megatron index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::trainer {

/// Returns the bytes of the .idx that Megatron would write for the same documents. The checks of
/// TokenIndex::parse are not made here. `idx` holds the start and the length of each document in
/// tokens, both i64. `meta` holds dtype and index_dtype as numpy names, and document_count. `name`
/// is PREFIX in messages.
Result<std::vector<std::byte>> megatron_index_of_scaling(std::span<const std::byte> idx,
                                                         std::string_view meta,
                                                         std::string_view name);

}  // namespace sortie::trainer
