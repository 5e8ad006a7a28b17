#include "trainer/ops/cpu/demo_block.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>

#include "common/base/check.h"
#include "trainer/ops/demo_values.h"

namespace sortie::trainer::ops {
namespace {

void fill_basis(std::int64_t size, CosineBasis& basis) {
  std::ranges::fill(basis.by_frequency, 0.0f);
  std::ranges::fill(basis.by_position, 0.0f);
  const auto side = static_cast<int>(size);
  const DemoCosines cosines = demo_cosines(side);
  for (int k = 0; k < side; ++k)
    for (int n = 0; n < side; ++n) {
      const int parts = (2 * n + 1) * k % (4 * side);
      const float value = k == 0 ? cosines.constant : DemoCosines::at(cosines.quarter, side, parts);
      basis.by_frequency[k * kDemoLine + n] = basis.by_position[n * kDemoLine + k] = value;
    }
}

}  // namespace

const CosineBasis& cosine_basis(std::int64_t size) {
  static std::array<std::unique_ptr<CosineBasis>, kDemoLine + 1> made;
  static std::array<std::once_flag, kDemoLine + 1> once;
  SORTIE_CHECK(size >= 1 && size <= kDemoLine, "{} values", size);
  const auto at = static_cast<std::size_t>(size);
  std::call_once(once[at], [&] {
    auto basis = std::make_unique<CosineBasis>();
    fill_basis(size, *basis);
    made[at] = std::move(basis);
  });
  return *made[at];
}

void DemoBlock::transform(DemoRoom& room) const {
  kernels_.product(room.values, kDemoLine, 1, by_column_.by_position, room.half, rows_, columns_,
                   columns_);
  kernels_.product(by_row_.by_frequency, kDemoLine, 1, room.half, room.coefficients, rows_,
                   columns_, rows_);
}

/// Finds the least chosen magnitude by bisection: counting is fast, and sorting would take longer
/// than the transform.
void DemoBlock::choose(const DemoRoom& room, std::span<DemoCoefficient> chosen) const {
  const auto wanted = static_cast<std::int64_t>(chosen.size());
  SORTIE_CHECK(wanted <= elements(), "{} of {} coefficients", wanted, elements());
  const auto count = [&](std::int64_t row, std::int64_t rows, std::uint32_t least) {
    return kernels_.count(room.coefficients + row * kDemoLine, rows, columns_, least);
  };
  std::uint32_t least = 0, over = 0x80000000u;  // count(least) >= wanted, count(over) < wanted
  std::int64_t above = 0;                       // count(over)
  bool equal = wanted == elements();            // count(least) == wanted
  while (!equal && over - least > 1) {
    const std::uint32_t middle = least + (over - least) / 2;
    const std::int64_t found = count(0, rows_, middle);
    if (found < wanted) {
      over = middle;
      above = found;
    } else {
      least = middle;
      equal = found == wanted;
    }
  }
  std::int64_t of_least = equal ? wanted : wanted - above;  // number to take of magnitude `least`
  auto to = chosen.begin();
  for (std::int64_t row = 0; row < rows_; ++row) {
    if (count(row, 1, least) == 0) continue;
    for (std::int64_t column = 0; column < columns_; ++column) {
      const float value = room.coefficients[row * kDemoLine + column];
      const std::uint32_t magnitude = demo_magnitude(value);
      if (magnitude < least || (magnitude == least && of_least-- <= 0)) continue;
      *to++ = {static_cast<std::uint16_t>(row), static_cast<std::uint16_t>(column), value};
    }
  }
  SORTIE_CHECK(to == chosen.end(), "chosen are others than {}", wanted);
}

void DemoBlock::restore(std::span<const DemoCoefficient> coefficients, DemoRoom& room) const {
  std::int64_t frequencies = 0;  // rows with a coefficient so far
  for (std::size_t i = 0; i < coefficients.size(); ++frequencies) {
    const std::int64_t row = coefficients[i].row;
    float* const line = room.half + frequencies * kDemoLine;
    std::fill_n(line, kDemoLine, 0.0f);
    for (; i < coefficients.size() && coefficients[i].row == row; ++i)
      kernels_.add_line(coefficients[i].value,
                        by_column_.by_frequency + coefficients[i].column * kDemoLine, line);
    std::copy_n(by_row_.by_frequency + row * kDemoLine, kDemoLine,
                room.factors + frequencies * kDemoLine);
  }
  kernels_.product(room.factors, 1, kDemoLine, room.half, room.values, rows_, columns_,
                   frequencies);
}

void write_demo_message(const DemoBlock& block, std::span<DemoCoefficient> coefficients,
                        std::span<std::uint8_t> message) {
  std::ranges::fill(message, std::uint8_t{0});
  const std::size_t slots = (message.size() - 2) / 5 * 2;
  SORTIE_CHECK(slots / 2 * 5 + 2 == message.size() && coefficients.size() <= slots,
               "{} coefficients in {} bytes", coefficients.size(), message.size());
  std::uint32_t largest = 0;  // bits of the largest magnitude, also if it is NaN
  for (const DemoCoefficient& one : coefficients)
    largest = std::max(largest, demo_magnitude(one.value));
  const DemoScale scale = demo_scale(largest);
  message[0] = static_cast<std::uint8_t>(scale.bits >> 16);
  message[1] = static_cast<std::uint8_t>(scale.bits >> 24);
  std::uint8_t* const indices = message.data() + 2;
  std::uint8_t* const values = indices + slots / 2 * 3;
  for (std::size_t i = 0; i < coefficients.size(); ++i) {
    DemoCoefficient& one = coefficients[i];
    const auto index = static_cast<std::uint32_t>(one.row * block.columns() + one.column);
    std::uint8_t* const pair = indices + i / 2 * 3;
    if (i % 2 == 0) {
      pair[0] = static_cast<std::uint8_t>(index);
      pair[1] = static_cast<std::uint8_t>(index >> 8);
    } else {
      pair[1] = static_cast<std::uint8_t>(pair[1] | index << 4);
      pair[2] = static_cast<std::uint8_t>(index >> 4);
    }
    const std::int8_t code = scale.code(one.value);
    values[i] = static_cast<std::uint8_t>(code);
    one.value = scale.value * static_cast<float>(code);
  }
}

std::size_t read_demo_message(const DemoBlock& block, std::span<const std::uint8_t> message,
                              std::span<DemoCoefficient> coefficients) {
  const std::size_t slots = (message.size() - 2) / 5 * 2;
  const float scale = demo_float(std::uint32_t{message[0]} << 16 | std::uint32_t{message[1]} << 24);
  const std::uint8_t* const indices = message.data() + 2;
  const std::uint8_t* const values = indices + slots / 2 * 3;
  const std::size_t sent = std::min(slots, static_cast<std::size_t>(block.elements()));
  std::size_t found = 0;
  for (std::size_t i = 0; i < sent; ++i) {
    const auto value = static_cast<std::int8_t>(values[i]);
    if (value == 0) continue;
    const std::uint8_t* const pair = indices + i / 2 * 3;
    const std::int64_t index =
        i % 2 == 0 ? pair[0] | (pair[1] & 0xf) << 8 : pair[1] >> 4 | pair[2] << 4;
    SORTIE_CHECK(index < block.elements(), "coefficient {} of {}", index, block.elements());
    coefficients[found++] = {static_cast<std::uint16_t>(index / block.columns()),
                             static_cast<std::uint16_t>(index % block.columns()),
                             scale * static_cast<float>(value)};
  }
  return found;
}

}  // namespace sortie::trainer::ops
