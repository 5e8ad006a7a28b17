#include "trainer/outer/cosine_transform.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "common/base/check.h"
#include "trainer/random/portable_math.h"

namespace sortie::trainer::outer {
namespace {

/// [frequency][position]
std::vector<float> cosines(std::size_t size) {
  std::vector<float> matrix(size * size);
  for (std::size_t k = 0; k < size; ++k) {
    const double scale = std::sqrt((k == 0 ? 1.0 : 2.0) / static_cast<double>(size));
    for (std::size_t n = 0; n < size; ++n) {
      const std::size_t quarters = (2 * n + 1) * k % (4 * size);
      const double turns = static_cast<double>(quarters) / static_cast<double>(4 * size);
      matrix[k * size + n] = static_cast<float>(scale * portable_cos_of_turns(turns));
    }
  }
  return matrix;
}

/// to[i] += factor x from[i]
void add_scaled(float factor, const float* from, std::size_t count, float* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

}  // namespace

CosineTransform::CosineTransform(std::size_t rows, std::size_t columns)
    : rows_(rows), columns_(columns), by_row_(cosines(rows)), by_column_(cosines(columns)) {
  SORTIE_CHECK(rows >= 1 && rows <= kLargest && columns >= 1 && columns <= kLargest, "{} x {}",
               rows, columns);
  by_column_turned_.resize(by_column_.size());
  for (std::size_t k = 0; k < columns; ++k)
    for (std::size_t n = 0; n < columns; ++n)
      by_column_turned_[n * columns + k] = by_column_[k * columns + n];
}

void CosineTransform::forward(const float* tile, std::size_t stride,
                              std::span<float> coefficients) const {
  SORTIE_CHECK(coefficients.size() == size());
  std::array<float, kLargest> row;
  std::ranges::fill(coefficients, 0.0f);
  for (std::size_t r = 0; r < rows_; ++r) {
    std::fill_n(row.begin(), columns_, 0.0f);
    for (std::size_t n = 0; n < columns_; ++n)
      add_scaled(tile[r * stride + n], by_column_turned_.data() + n * columns_, columns_,
                 row.data());
    for (std::size_t k = 0; k < rows_; ++k)
      add_scaled(by_row_[k * rows_ + r], row.data(), columns_, coefficients.data() + k * columns_);
  }
}

void CosineTransform::inverse(std::span<const Coefficient> coefficients,
                              std::span<float> out) const {
  SORTIE_CHECK(out.size() == size());
  std::array<float, kLargest> row;
  std::ranges::fill(out, 0.0f);
  for (std::size_t at = 0; at < coefficients.size();) {
    // All of one frequency along the rows.
    const std::size_t k = coefficients[at].index / columns_;
    std::fill_n(row.begin(), columns_, 0.0f);
    for (; at < coefficients.size() && coefficients[at].index / columns_ == k; ++at)
      add_scaled(coefficients[at].value,
                 by_column_.data() + coefficients[at].index % columns_ * columns_, columns_,
                 row.data());
    for (std::size_t r = 0; r < rows_; ++r)
      add_scaled(by_row_[k * rows_ + r], row.data(), columns_, out.data() + r * columns_);
  }
}

}  // namespace sortie::trainer::outer
