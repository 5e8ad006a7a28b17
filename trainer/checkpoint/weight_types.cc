#include "trainer/checkpoint/weight_types.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/base/check.h"
#include "trainer/tensor/dtype.h"

namespace sortie::trainer {
namespace {

template <class T>
void widen_as(const std::byte* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
    to[i] = static_cast<float>(value);
  }
}

template <class T>
void narrow_as(const float* from, std::int64_t count, std::byte* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T value = static_cast<T>(from[i]);
    std::memcpy(to + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
  }
}

}  // namespace

bool is_weight_type(StorageType type) {
  return type == StorageType::f32 || type == StorageType::bf16 || type == StorageType::f16;
}

void widen(StorageType type, const std::byte* from, std::int64_t count, float* to) {
  SORTIE_CHECK(is_weight_type(type), "weights as {}", storage_name(type));
  if (type == StorageType::f32)
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  else if (type == StorageType::bf16)
    widen_as<bf16>(from, count, to);
  else
    widen_as<_Float16>(from, count, to);
}

void narrow(StorageType type, const float* from, std::int64_t count, std::byte* to) {
  SORTIE_CHECK(is_weight_type(type), "weights as {}", storage_name(type));
  if (type == StorageType::f32)
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  else if (type == StorageType::bf16)
    narrow_as<bf16>(from, count, to);
  else
    narrow_as<_Float16>(from, count, to);
}

void convert(StorageType from_type, const std::byte* from, std::int64_t count, StorageType to_type,
             std::byte* to) {
  if (from_type == to_type) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * storage_bytes(to_type));
    return;
  }
  std::array<float, 1024> wide;
  constexpr std::int64_t kMost = wide.size();
  for (std::int64_t done = 0; done < count; done += kMost) {
    const std::int64_t here = std::min(count - done, kMost);
    widen(from_type, from + static_cast<std::size_t>(done) * storage_bytes(from_type), here,
          wide.data());
    narrow(to_type, wide.data(), here,
           to + static_cast<std::size_t>(done) * storage_bytes(to_type));
  }
}

}  // namespace sortie::trainer
