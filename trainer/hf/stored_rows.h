// Weights as they lie in files, copied from row to row without a model in memory.
#pragma once

#include <functional>

#include "trainer/checkpoint/byte_stream.h"
#include "trainer/checkpoint/safetensors.h"

namespace sortie::trainer {

/// A row of a stored matrix: its elements, which may be `stride` elements apart. No data = zeros.
struct StoredRow {
  const std::byte* data = nullptr;
  std::int64_t stride = 1;
  StorageType type = StorageType::f32;
};

/// A matrix [rows, cols] of elements of `type` put together from rows stored elsewhere: shown where
/// they lie if they are of that type and in one piece each, else converted when they are written.
/// What the rows point at must outlive the writing.
TensorData gather_rows(std::int64_t rows, std::int64_t cols, StorageType type,
                       std::function<StoredRow(std::int64_t row)> row_of);

}  // namespace sortie::trainer
