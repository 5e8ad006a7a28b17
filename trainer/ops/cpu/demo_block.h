// A block of DeMo on the CPU: its cosine transform, the choice of coefficients, and the bytes of
// its message. Rows of a block are kDemoLine apart.
#pragma once

#include <cstdint>
#include <span>

#include "trainer/ops/kernels/demo_kernels.h"

namespace sortie::trainer::ops {

inline constexpr std::int64_t kDemoElements = kDemoLine * kDemoLine;

/// The orthonormal DCT-II of `size` values: by_frequency[k][n] = by_position[n][k] = sqrt((k ? 2 :
/// 1) / size) cos(pi (2 n + 1) k / (2 size)). Rows are padded with zeros.
struct CosineBasis {
  alignas(64) float by_frequency[kDemoElements];
  alignas(64) float by_position[kDemoElements];
};
/// The basis for 1 to kDemoLine values. Computed once; the same bits on every CPU. Thread-safe.
const CosineBasis& cosine_basis(std::int64_t size);

/// Scratch memory of a thread.
struct DemoRoom {
  alignas(64) float values[kDemoElements], coefficients[kDemoElements];
  alignas(64) float half[kDemoElements];  // transformed along one side
  alignas(64) float factors[kDemoElements];
};

/// Has no default values, because blocks have large arrays of it and use few elements.
struct DemoCoefficient {
  std::uint16_t row, column;  // frequencies
  float value;
};

class DemoBlock {
 public:
  DemoBlock(const DemoKernels& kernels, std::int64_t rows, std::int64_t columns)
      : kernels_(kernels),
        rows_(rows),
        columns_(columns),
        by_row_(cosine_basis(rows)),
        by_column_(cosine_basis(columns)) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t elements() const { return rows_ * columns_; }

  /// room.coefficients = DCT(room.values). Values beyond the block's columns must be 0.
  void transform(DemoRoom& room) const;
  /// Returns the chosen.size() coefficients of the largest magnitude, in row-major order; ties go
  /// to the first ones.
  void choose(const DemoRoom& room, std::span<DemoCoefficient> chosen) const;
  /// room.values = IDCT of the block with these coefficients. Coefficients of one row must be
  /// adjacent. Overwrites room.half and room.factors.
  void restore(std::span<const DemoCoefficient> coefficients, DemoRoom& room) const;

 private:
  const DemoKernels& kernels_;
  std::int64_t rows_, columns_;
  const CosineBasis &by_row_, &by_column_;
};

/// Writes the message of a block (demo.h) and rounds the coefficients to what it encodes.
void write_demo_message(const DemoBlock& block, std::span<DemoCoefficient> coefficients,
                        std::span<std::uint8_t> message);
/// Reads the coefficients of a message that are not 0; returns their number.
std::size_t read_demo_message(const DemoBlock& block, std::span<const std::uint8_t> message,
                              std::span<DemoCoefficient> coefficients);

}  // namespace sortie::trainer::ops
