// CosineTransform: the orthonormal DCT-II of tiles of a matrix (Ahmed, Natarajan and Rao 1974).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sortie::trainer::outer {

/// A coefficient of a tile: its row and column in the order of its elements.
struct Coefficient {
  std::uint32_t index = 0;
  float value = 0.0f;
};

/// Of tiles of one shape; at most 64 x 64. f32 in a fixed order: the same bits on every CPU.
/// Thread-safe.
class CosineTransform {
 public:
  static constexpr std::size_t kLargest = 64;

  CosineTransform(std::size_t rows, std::size_t columns);
  std::size_t rows() const { return rows_; }
  std::size_t columns() const { return columns_; }
  std::size_t size() const { return rows_ * columns_; }

  /// `tile` is part of a matrix with `stride` elements per row; size() coefficients come out.
  void forward(const float* tile, std::size_t stride, std::span<float> coefficients) const;
  /// out (size() elements, row by row) = the tile of which these are all that is not 0; indices
  /// ascend.
  void inverse(std::span<const Coefficient> coefficients, std::span<float> out) const;

 private:
  std::size_t rows_, columns_;
  /// [frequency][position], and the column one also transposed.
  std::vector<float> by_row_, by_column_, by_column_turned_;
};

}  // namespace sortie::trainer::outer
