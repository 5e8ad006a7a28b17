#include "trainer/hf/stored_rows.h"

#include <algorithm>
#include <cstring>

#include "trainer/checkpoint/weight_types.h"

namespace sortie::trainer {
namespace {

constexpr std::int64_t kBlock = 1024;  // elements converted at a time

template <class T>
void copy_strided(const std::byte* from, std::int64_t stride, std::int64_t count, std::byte* to) {
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(to + static_cast<std::size_t>(i) * sizeof(T),
                from + static_cast<std::size_t>(i * stride) * sizeof(T), sizeof(T));
}

/// Copies elements [first, first + count) of a row to `to`, as `type`.
void copy_row(const StoredRow& row, std::int64_t first, std::int64_t count, StorageType type,
              std::byte* to) {
  const std::size_t size = storage_bytes(row.type), wanted = storage_bytes(type);
  if (row.data == nullptr) {
    std::memset(to, 0, static_cast<std::size_t>(count) * wanted);
    return;
  }
  const auto element = [&](std::int64_t index) {
    return row.data + static_cast<std::size_t>(index * row.stride) * size;
  };
  if (row.type == type && row.stride == 1) {
    std::memcpy(to, element(first), static_cast<std::size_t>(count) * size);
    return;
  }
  std::byte gathered[kBlock * sizeof(float)];
  float wide[kBlock];
  for (std::int64_t at = 0; at < count; at += kBlock) {
    const std::int64_t n = std::min(kBlock, count - at);
    const std::byte* from = element(first + at);
    std::byte* out = to + static_cast<std::size_t>(at) * wanted;
    if (row.stride != 1) {
      const auto copy = size == 2 ? copy_strided<std::uint16_t> : copy_strided<std::uint32_t>;
      copy(from, row.stride, n, row.type == type ? out : gathered);
      from = gathered;
    }
    if (row.type == type) continue;
    widen(row.type, from, n, wide);
    narrow(type, wide, n, out);
  }
}

}  // namespace

TensorData gather_rows(std::int64_t rows, std::int64_t cols, StorageType type,
                       std::function<StoredRow(std::int64_t row)> row_of) {
  const std::size_t size = storage_bytes(type), row_bytes = static_cast<std::size_t>(cols) * size;
  std::vector<std::span<const std::byte>> parts;
  bool whole = true;
  for (std::int64_t r = 0; whole && r < rows; ++r) {
    const StoredRow row = row_of(r);
    whole = row.data != nullptr && row.type == type && (row.stride == 1 || cols == 1);
    if (!whole) break;
    if (!parts.empty() && parts.back().data() + parts.back().size() == row.data)
      parts.back() = {parts.back().data(), parts.back().size() + row_bytes};
    else
      parts.emplace_back(row.data, row_bytes);
  }
  if (whole) return TensorData(std::move(parts));
  const auto bytes = static_cast<std::uint64_t>(rows) * row_bytes;
  return {bytes, [cols, type, size, row_of = std::move(row_of)](std::uint64_t begin,
                                                                std::span<std::byte> out) {
            auto element = static_cast<std::int64_t>(begin / size);
            while (!out.empty()) {
              const std::int64_t row = element / cols, first = element % cols;
              const auto count =
                  std::min(cols - first, static_cast<std::int64_t>(out.size() / size));
              copy_row(row_of(row), first, count, type, out.data());
              out = out.subspan(static_cast<std::size_t>(count) * size);
              element += count;
            }
          }};
}

}  // namespace sortie::trainer
