// Copies weights from file to file, row by row, without a model in memory.
#pragma once

#include <functional>

#include "trainer/checkpoint/byte_stream.h"
#include "trainer/checkpoint/safetensors.h"

namespace sortie::trainer {

/// A row of a stored matrix. Its elements are `stride` elements apart. nullptr = zeros.
struct StoredRow {
  const std::byte* data = nullptr;
  std::int64_t stride = 1;
  StorageType type = StorageType::f32;
};

/// Builds a matrix [rows, cols] of elements of `type` from rows stored elsewhere. If every row has
/// this type and is contiguous, the result refers to the rows in place. Otherwise they are
/// converted when the result is written. The rows must outlive the result.
TensorData gather_rows(std::int64_t rows, std::int64_t cols, StorageType type,
                       std::function<StoredRow(std::int64_t row)> row_of);

}  // namespace sortie::trainer
