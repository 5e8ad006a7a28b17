// Scaling's memory map (PREFIX.bin, PREFIX.idx, PREFIX.meta.json) as a Megatron index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::trainer {

/// The bytes of the .idx that Megatron would have for the same documents; what is checked of those
/// (TokenIndex::parse) is not checked here. `idx`: start and length in tokens of each document,
/// both i64; `meta`: dtype and index_dtype by their numpy names, document_count.
Result<std::vector<std::byte>> megatron_index_of_scaling(std::span<const std::byte> idx,
                                                         std::string_view meta,
                                                         std::string_view name);

}  // namespace sortie::trainer
